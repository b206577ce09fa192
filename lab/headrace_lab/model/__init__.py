"""A scripted model server, whose tokens are due when they are due: `python -m headrace_lab.model`.

In: requests that say what is to be answered (`script`). Out: events at those times, and a record of what
became of each request. This room must not know who asks.
"""

from headrace_lab.model.script import Script, body_of, event
from headrace_lab.model.source import Run, Source

__all__ = ["Run", "Script", "Source", "body_of", "event"]
