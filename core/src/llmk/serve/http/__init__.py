"""Connections and requests up to the routes: limits, keys, hosts, TLS, errors, access log."""
