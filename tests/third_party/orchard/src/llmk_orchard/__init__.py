"""Plugins written from the documentation alone, with which the conformance kit is measured."""
