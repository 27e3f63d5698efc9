"""The portal: pages for the people of a tenant, and for the installation's operators.

Pages are rendered by the gateway from what the API's rows answer to whoever is looking; what a page
changes, its modules ask of the public API with the session's cookies.
"""
