"""The API reference: OpenAPI documents and the page /docs, generated from the endpoint rows."""
