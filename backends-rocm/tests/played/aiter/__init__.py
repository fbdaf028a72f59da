"""Stands in for AITER in tests: functions of its signatures, in plain torch."""
