"""Processes that do for the front end what a request's content can make slow: prepare requests, run parsers and IO
processors of plugins.
"""
