"""The portal: pages for a tenant's members, and for the installation's operators.

The gateway renders a page from the responses of the API's own endpoints, with the visitor's
permissions. To change something, a page's modules call the public API with the session's cookies.
"""
