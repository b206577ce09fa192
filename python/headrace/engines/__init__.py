"""Model servers that headrace starts itself."""
