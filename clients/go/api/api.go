// Package api has the types and operations of pqkeep's HTTP API. They are generated from its
// OpenAPI document. The field API of a pqkeep.Client calls them.
package api

import (
	"context"
	"net/url"
)

// A Request describes one call. It does nothing by itself.
type Request struct {
	Method string
	// Path has literal parts and names in turn, beginning with a literal part.
	Path  []string
	Query url.Values
	Body  any
	// Changes is true if the call changes something, and must do so only once.
	Changes bool
}

// Path returns the parts of a path: literal parts and names in turn.
func Path(parts ...string) []string { return parts }

// A Caller makes requests, with retries.
type Caller interface {
	// Call decodes the data of the response into the result.
	Call(ctx context.Context, request Request, result any) error
	// Text returns the body of a response that has no envelope.
	Text(ctx context.Context, request Request) ([]byte, error)
}

// Operations has a method for each operation that an API key may call.
type Operations struct {
	caller Caller
}

// New returns the operations of a caller.
func New(caller Caller) Operations { return Operations{caller} }

func call[T any](ctx context.Context, operations Operations, request Request) (*T, error) {
	var result T
	if err := operations.caller.Call(ctx, request, &result); err != nil {
		return nil, err
	}
	return &result, nil
}

func text(ctx context.Context, operations Operations, request Request) ([]byte, error) {
	return operations.caller.Text(ctx, request)
}
