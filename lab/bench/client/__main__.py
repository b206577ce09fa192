import sys

from bench.client.compare import main

try:
    main()
except KeyboardInterrupt:
    sys.exit(130)
