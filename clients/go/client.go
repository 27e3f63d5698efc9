// Package pqkeep is the client of pqkeep, a service for post-quantum cryptography.
//
//	client, err := pqkeep.New(pqkeep.Config{}) // PQKEEP_URL and PQKEEP_API_KEY
//	sealed, err := client.KEM.Encrypt(ctx, []byte("hello, world"), pqkeep.Options{})
//	plaintext, err := client.KEM.Decrypt(ctx, sealed.Ciphertext, *sealed.KeyVersion, pqkeep.Options{})
//
// Every failure of a call is an [*Error]. Failures that may pass are retried, and no change is made
// twice.
package pqkeep

import (
	"net/http"

	"pqkeep/api"
)

// A Client calls one service with one credential. Goroutines may share it.
type Client struct {
	KEM        KEM
	Signatures Signatures
	MACs       MACs
	Keys       Keys
	Keyrings   Keyrings
	APIKeys    APIKeys
	Audit      Audit
	// Local encrypts data in this process. The service sees only KEM ciphertexts.
	Local Local
	// API has every operation, as generated from the OpenAPI document.
	API api.Operations

	config   Config
	http     *http.Client
	workload *workload
}

// New returns a client. It connects with the first call.
func New(config Config) (*Client, error) {
	config, err := config.resolved()
	if err != nil {
		return nil, err
	}
	client := &Client{config: config}
	if client.http, err = config.httpClient(); err != nil {
		return nil, err
	}
	if config.TokenFile != "" {
		client.workload = newWorkload(config.Role, config.TokenFile)
	}
	client.API = api.New(client)
	client.KEM = KEM{client}
	client.Signatures = Signatures{client}
	client.MACs = MACs{client}
	client.Keys = Keys{client}
	client.Keyrings = Keyrings{client}
	client.APIKeys = APIKeys{client}
	client.Audit = Audit{client}
	client.Local = Local{client}
	return client, nil
}

// URL returns the address of the service.
func (c *Client) URL() string { return c.config.URL }

// String returns the address, without the credential. So a logged client shows no secret.
func (c *Client) String() string { return "pqkeep client of " + c.config.URL }

// GoString returns the same.
func (c *Client) GoString() string { return c.String() }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
