"""Requests to providers of single sign-on."""
