"""The gateway: who is asking, may they, and what do they get back.

It is the public process. It holds no private key and imports nothing that could.
"""
