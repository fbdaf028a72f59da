"""Tenants: API keys with roles and quotas, kept in a database over restarts."""
