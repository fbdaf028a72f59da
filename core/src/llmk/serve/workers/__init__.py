"""Worker processes for work whose time depends on the content of requests: preparing requests, and running parsers and
IO processors of plugins.
"""
