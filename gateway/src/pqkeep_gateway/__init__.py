"""The public HTTP process: it authenticates callers, authorises them and relays to the key service.

It holds no private key and imports no module that could.
"""
