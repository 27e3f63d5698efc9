package pqkeep

import (
	"context"
	"encoding/json"
	"errors"

	"pqkeep/api"
)

const (
	maxItems = 128
	// maxItemBytes is the most bytes of the items in one request.
	maxItemBytes = 4<<20 - 64
)

// A Result is the result of one item: a value, or the error of its single call.
type Result[T any] struct {
	Value T
	Err   error
}

// A SignedMessage is a message with a signature to verify.
type SignedMessage struct {
	Message, Signature []byte
	KeyVersion         int
}

// EncryptMany encrypts many plaintexts in few requests. The results have their order. The error is
// that of a whole request; the results are then those of the requests before it.
func (k KEM) EncryptMany(ctx context.Context, plaintexts [][]byte, options Options) ([]Result[*Ciphertext], error) {
	items := make([]api.EncryptRequest, len(plaintexts))
	for place, plaintext := range plaintexts {
		items[place] = encryption(plaintext, options, "")
	}
	return many(ctx, k.client, "/kem/encrypt", items, ciphertextOf)
}

// DecryptMany decrypts many ciphertexts in few requests, as EncryptMany encrypts. Each ciphertext
// names its key, in the options' keyring.
func (k KEM) DecryptMany(ctx context.Context, ciphertexts []Ciphertext, options Options) ([]Result[[]byte], error) {
	items := make([]api.DecryptRequest, len(ciphertexts))
	for place, sealed := range ciphertexts {
		options.Algorithm = sealed.Algorithm
		items[place] = decryption(sealed.Ciphertext, sealed.KeyVersion, options)
	}
	plaintext := func(made *api.Decrypted) ([]byte, error) { return made.Plaintext, nil }
	return many(ctx, k.client, "/kem/decrypt", items, plaintext)
}

// SignMany signs many messages in few requests, as EncryptMany encrypts.
func (s Signatures) SignMany(ctx context.Context, messages [][]byte, options Options) ([]Result[*api.Signed], error) {
	items := make([]api.SignRequest, len(messages))
	for place, message := range messages {
		items[place] = signing(message, options)
	}
	signed := func(made *api.Signed) (*api.Signed, error) { return made, nil }
	return many(ctx, s.client, "/signature/sign", items, signed)
}

// VerifyMany verifies many signatures in few requests. The value of a signature that does not verify
// is false, without an error: check it.
func (s Signatures) VerifyMany(ctx context.Context, messages []SignedMessage, options Options) ([]Result[bool], error) {
	items := make([]api.VerifyRequest, len(messages))
	for place, signed := range messages {
		items[place] = verification(signed.Message, signed.Signature, signed.KeyVersion, options)
	}
	valid := func(made *api.Verified) (bool, error) { return made.Valid, nil }
	return many(ctx, s.client, "/signature/verify", items, valid)
}

type itemResult struct {
	Data  json.RawMessage `json:"data,omitempty"`
	Error *api.Fault      `json:"error,omitempty"`
}

// many makes one call for each item, in batches. The data of a result is that of the single call.
func many[Item, Data, Value any](
	ctx context.Context, client *Client, path string, items []Item, value func(*Data) (Value, error),
) ([]Result[Value], error) {
	results := make([]Result[Value], 0, len(items))
	waiting, size := []json.RawMessage{}, 0
	send := func() error {
		request := api.Request{
			Method: "POST", Path: api.Path(apiPath + path + "/batch"),
			Body: map[string]any{"items": waiting},
		}
		var made struct {
			Results []itemResult `json:"results"`
		}
		if err := client.Call(ctx, request, &made); err != nil {
			return err
		}
		if len(made.Results) != len(waiting) {
			return malformed("the number of results differs from that of the items", "results")
		}
		for place, result := range made.Results {
			var one Result[Value]
			one.Value, one.Err = read(result, waiting[place], value)
			if errors.Is(one.Err, ErrMalformedResponse) {
				return one.Err
			}
			results = append(results, one)
		}
		waiting, size = waiting[:0], 0
		return nil
	}
	for _, item := range items {
		encoded, err := json.Marshal(item)
		if err != nil {
			return results, &Error{Kind: ErrInvalidRequest, Message: "a value cannot be sent as JSON"}
		}
		if len(waiting) == maxItems || len(waiting) > 0 && size+len(encoded) > maxItemBytes {
			if err := send(); err != nil {
				return results, err
			}
		}
		waiting, size = append(waiting, encoded), size+len(encoded)+1
	}
	if len(waiting) == 0 {
		return results, nil
	}
	return results, send()
}

func read[Data, Value any](result itemResult, item json.RawMessage, value func(*Data) (Value, error)) (Value, error) {
	var none Value
	if fault := result.Error; fault != nil {
		kind, isKnown := kindsOfItems[fault.ErrorCode]
		if special, isSpecial := kindsByCode[fault.ErrorCode]; isSpecial {
			kind = special
		} else if !isKnown {
			kind = ErrOther
		}
		return none, &Error{Kind: kind, Code: shown(fault.ErrorCode), Message: shown(fault.Message), Field: shown(fault.Field)}
	}
	if field := differs(item, nil, result.Data); field != "" {
		return none, malformed("the response is about another key than the request", field)
	}
	var data Data
	if field := fill(result.Data, &data); field != "" {
		return none, malformed("a field of the response is missing or malformed", field)
	}
	return value(&data)
}
