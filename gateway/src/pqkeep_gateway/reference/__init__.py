"""The API described: OpenAPI documents and the page /docs, made from the endpoint rows."""
