package pqkeep

import (
	"context"
	"io"
	"iter"
	"strconv"

	"pqkeep/api"
)

// Options of a cryptographic call. Options that are left out have the service's defaults: the
// keyring default, the active version, Kyber768 to encrypt and Dilithium3 to sign. Decryption and
// verification need the same options as encryption and signing.
type Options struct {
	Algorithm, Keyring string
	// KeyVersion names a version where a method has no argument for it.
	KeyVersion int
	// AssociatedData binds a ciphertext to its place, such as a row: at most 65,536 bytes.
	AssociatedData []byte
	// Context binds a signature to its use, or derives a key.
	Context []byte
}

func (o Options) version() *int {
	if o.KeyVersion == 0 {
		return nil
	}
	return &o.KeyVersion
}

// KEM has the operations of encryption keys.
type KEM struct{ client *Client }

// A Ciphertext is encrypted data. Keep all three fields: decryption needs them.
type Ciphertext struct {
	Ciphertext []byte
	KeyVersion int
	Algorithm  string
}

// An Envelope is encrypted data that names its key. Keep the text: decryption needs nothing else.
type Envelope struct {
	Envelope   string
	KeyVersion int
	Algorithm  string
}

// Encrypt encrypts at most 1,048,576 bytes.
func (k KEM) Encrypt(ctx context.Context, plaintext []byte, options Options) (*Ciphertext, error) {
	made, err := k.client.API.Encrypt(ctx, encryption(plaintext, options, ""))
	if err != nil {
		return nil, err
	}
	return ciphertextOf(made)
}

func ciphertextOf(made *api.Encrypted) (*Ciphertext, error) {
	if made.KeyVersion == nil || len(made.Ciphertext) == 0 {
		return nil, malformed("a field of the response is missing or malformed", "ciphertext")
	}
	return &Ciphertext{made.Ciphertext, *made.KeyVersion, made.Algorithm}, nil
}

// EncryptToEnvelope encrypts at most 1,048,576 bytes to a text that names its key.
func (k KEM) EncryptToEnvelope(ctx context.Context, plaintext []byte, options Options) (*Envelope, error) {
	made, err := k.client.API.Encrypt(ctx, encryption(plaintext, options, "envelope"))
	if err != nil {
		return nil, err
	}
	if made.KeyVersion == nil || made.Envelope == "" {
		return nil, malformed("a field of the response is missing or malformed", "envelope")
	}
	return &Envelope{made.Envelope, *made.KeyVersion, made.Algorithm}, nil
}

func encryption(plaintext []byte, options Options, format string) api.EncryptRequest {
	return api.EncryptRequest{
		Plaintext: given(plaintext), Algorithm: options.Algorithm, Keyring: options.Keyring, KeyVersion: options.version(),
		AssociatedData: options.AssociatedData, Context: options.Context, Format: format,
	}
}

// Decrypt returns the plaintext. The error is an ErrDecryption for another key, other associated
// data, another context, or a changed ciphertext.
func (k KEM) Decrypt(ctx context.Context, ciphertext []byte, keyVersion int, options Options) ([]byte, error) {
	return k.decrypt(ctx, decryption(ciphertext, keyVersion, options))
}

func decryption(ciphertext []byte, keyVersion int, options Options) api.DecryptRequest {
	return api.DecryptRequest{
		Ciphertext: ciphertext, KeyVersion: &keyVersion, Algorithm: options.Algorithm, Keyring: options.Keyring,
		AssociatedData: options.AssociatedData, Context: options.Context,
	}
}

// DecryptEnvelope returns the plaintext of an envelope. Of the options it uses the associated data
// and the context.
func (k KEM) DecryptEnvelope(ctx context.Context, envelope string, options Options) ([]byte, error) {
	return k.decrypt(ctx, api.DecryptRequest{
		Envelope: envelope, AssociatedData: options.AssociatedData, Context: options.Context,
	})
}

func (k KEM) decrypt(ctx context.Context, request api.DecryptRequest) ([]byte, error) {
	made, err := k.client.API.Decrypt(ctx, request)
	if err != nil {
		return nil, err
	}
	return made.Plaintext, nil
}

// Encapsulate makes a shared secret of 32 bytes. The service does not store it.
func (k KEM) Encapsulate(ctx context.Context, keyVersion int, options Options) (*api.Encapsulated, error) {
	return k.client.API.Encapsulate(ctx, api.EncapsulateRequest{
		KeyVersion: &keyVersion, Algorithm: options.Algorithm, Keyring: options.Keyring,
	})
}

// Decapsulate recovers a shared secret. The wrong key returns a different secret, without an error
// (FIPS 203, section 6.3).
func (k KEM) Decapsulate(ctx context.Context, kemCiphertext []byte, keyVersion int, options Options) ([]byte, error) {
	made, err := k.client.API.Decapsulate(ctx, api.DecapsulateRequest{
		KemCiphertext: kemCiphertext, KeyVersion: keyVersion, Algorithm: options.Algorithm, Keyring: options.Keyring,
	})
	if err != nil {
		return nil, err
	}
	if len(made.SharedSecret) != keySize {
		return nil, malformed("a field of the response is missing or malformed", "shared_secret")
	}
	return made.SharedSecret, nil
}

// Wrap wraps a symmetric key of 16, 24, 32, 48 or 64 bytes.
func (k KEM) Wrap(ctx context.Context, symmetricKey []byte, keyVersion int, options Options) (*api.Wrapped, error) {
	return k.client.API.Wrap(ctx, api.WrapRequest{
		SymmetricKey: given(symmetricKey), KeyVersion: keyVersion, Algorithm: options.Algorithm, Keyring: options.Keyring,
		AssociatedData: options.AssociatedData,
	})
}

// Unwrap returns a wrapped symmetric key. The error is an ErrUnwrapping if it was modified.
func (k KEM) Unwrap(ctx context.Context, wrappedKey []byte, keyVersion int, options Options) ([]byte, error) {
	made, err := k.client.API.Unwrap(ctx, api.UnwrapRequest{
		WrappedKey: given(wrappedKey), KeyVersion: keyVersion, Algorithm: options.Algorithm, Keyring: options.Keyring,
		AssociatedData: options.AssociatedData,
	})
	if err != nil {
		return nil, err
	}
	return made.SymmetricKey, nil
}

// DataKey makes a data key of 16, 32 or 64 bytes, in plaintext and wrapped for Unwrap. The size 0
// means 32.
func (k KEM) DataKey(ctx context.Context, size int, options Options) (*api.DataKey, error) {
	request := api.GenerateDataKeyRequest{
		Algorithm: options.Algorithm, Keyring: options.Keyring, KeyVersion: options.version(),
		AssociatedData: options.AssociatedData, Context: options.Context,
	}
	if size != 0 {
		request.Size = &size
	}
	return k.client.API.GenerateDataKey(ctx, request)
}

// Signatures has the operations of signature keys.
type Signatures struct{ client *Client }

// Sign signs a message.
func (s Signatures) Sign(ctx context.Context, message []byte, options Options) (*api.Signed, error) {
	return s.client.API.Sign(ctx, signing(message, options))
}

func signing(message []byte, options Options) api.SignRequest {
	return api.SignRequest{
		Message: given(message), Algorithm: options.Algorithm, Keyring: options.Keyring, KeyVersion: options.version(),
		Context: options.Context,
	}
}

// Verify returns false, and no error, for a signature that does not verify: check the result.
func (s Signatures) Verify(ctx context.Context, message, signature []byte, keyVersion int, options Options) (bool, error) {
	made, err := s.client.API.Verify(ctx, verification(message, signature, keyVersion, options))
	return err == nil && made.Valid, err
}

func verification(message, signature []byte, keyVersion int, options Options) api.VerifyRequest {
	return api.VerifyRequest{
		Message: given(message), Signature: given(signature), KeyVersion: &keyVersion, Algorithm: options.Algorithm,
		Keyring: options.Keyring, Context: options.Context,
	}
}

// SignHash signs a hash of SHA-256, SHA-384 or SHA-512.
func (s Signatures) SignHash(ctx context.Context, hash []byte, hashAlgorithm string, options Options) (*api.SignedHash, error) {
	return s.client.API.SignHash(ctx, api.SignHashRequest{
		Hash: given(hash), HashAlgorithm: hashAlgorithm, Algorithm: options.Algorithm, Keyring: options.Keyring,
		KeyVersion: options.version(),
	})
}

// VerifyHash returns false, and no error, for a signature that does not verify: check the result.
func (s Signatures) VerifyHash(ctx context.Context, hash []byte, hashAlgorithm string, signature []byte, keyVersion int, options Options) (bool, error) {
	made, err := s.client.API.VerifyHash(ctx, api.VerifyHashRequest{
		Hash: given(hash), HashAlgorithm: hashAlgorithm, Signature: given(signature), KeyVersion: &keyVersion,
		Algorithm: options.Algorithm, Keyring: options.Keyring,
	})
	return err == nil && made.Valid, err
}

// MACs has the operations of keys for message authentication codes.
type MACs struct{ client *Client }

// Compute returns a MAC.
func (m MACs) Compute(ctx context.Context, message []byte, options Options) (*api.ComputedMac, error) {
	return m.client.API.ComputeMac(ctx, api.ComputeMacRequest{
		Message: given(message), Algorithm: options.Algorithm, Keyring: options.Keyring, KeyVersion: options.version(),
	})
}

// Verify returns false, and no error, for a wrong MAC: check the result.
func (m MACs) Verify(ctx context.Context, message, mac []byte, keyVersion int, options Options) (bool, error) {
	made, err := m.client.API.VerifyMac(ctx, api.VerifyMacRequest{
		Message: given(message), Mac: given(mac), KeyVersion: keyVersion, Algorithm: options.Algorithm,
		Keyring: options.Keyring,
	})
	return err == nil && made.Valid, err
}

// Keys manages the keys of a tenant. An empty keyring is the keyring default.
type Keys struct{ client *Client }

// Generate makes the first key of an algorithm. With ifAbsent it returns the active key if there is
// one.
func (k Keys) Generate(ctx context.Context, algorithm, keyring string, ifAbsent bool) (*api.Key, error) {
	request := api.GenerateKeyRequest{Algorithm: algorithm, Keyring: keyring}
	if ifAbsent {
		request.IfAbsent = &ifAbsent
	}
	return k.client.API.GenerateKey(ctx, request)
}

// Rotate makes a new active version, and retires the old one.
func (k Keys) Rotate(ctx context.Context, algorithm, keyring string) (*api.RotatedKey, error) {
	return k.client.API.RotateKey(ctx, api.RotateKeyRequest{Algorithm: algorithm, Keyring: keyring})
}

// Retire ends encryption and signing with a version. It still decrypts and verifies.
func (k Keys) Retire(ctx context.Context, algorithm, keyring string, keyVersion int) (*api.Key, error) {
	return k.client.API.RetireKey(ctx, api.RetireKeyRequest{Algorithm: algorithm, Keyring: keyring, KeyVersion: keyVersion})
}

// Active returns the active version.
func (k Keys) Active(ctx context.Context, algorithm, keyring string) (*api.Key, error) {
	return k.client.API.GetActiveKey(ctx, api.GetActiveKeyQuery{Algorithm: algorithm, Keyring: keyring})
}

// Get returns a version.
func (k Keys) Get(ctx context.Context, algorithm, keyring string, keyVersion int) (*api.Key, error) {
	return k.client.API.GetKey(ctx, keyVersion, api.GetKeyQuery{Algorithm: algorithm, Keyring: keyring})
}

// List yields the keys, page by page. After an error it ends.
func (k Keys) List(ctx context.Context, query api.ListKeysQuery) iter.Seq2[api.Key, error] {
	return pages(func(after string) ([]api.Key, string, error) {
		query.After = after
		page, err := k.client.API.ListKeys(ctx, query)
		if err != nil {
			return nil, "", err
		}
		return page.Keys, page.Next, nil
	})
}

// Keyrings manages the keyrings of a tenant. The keyring default always exists.
type Keyrings struct{ client *Client }

// Create makes a keyring without keys.
func (k Keyrings) Create(ctx context.Context, keyring api.CreateKeyringRequest) (*api.Keyring, error) {
	return k.client.API.CreateKeyring(ctx, keyring)
}

// Update changes the settings that are given.
func (k Keyrings) Update(ctx context.Context, name string, changes api.UpdateKeyringRequest) (*api.Keyring, error) {
	return k.client.API.UpdateKeyring(ctx, name, changes)
}

// Get returns a keyring.
func (k Keyrings) Get(ctx context.Context, name string) (*api.Keyring, error) {
	return k.client.API.GetKeyring(ctx, name)
}

// List yields the keyrings, page by page. After an error it ends.
func (k Keyrings) List(ctx context.Context, query api.ListKeyringsQuery) iter.Seq2[api.Keyring, error] {
	return pages(func(after string) ([]api.Keyring, string, error) {
		query.After = after
		page, err := k.client.API.ListKeyrings(ctx, query)
		if err != nil {
			return nil, "", err
		}
		return page.Keyrings, page.Next, nil
	})
}

// APIKeys manages API keys.
type APIKeys struct{ client *Client }

// Own returns the client's own API key, without its text.
func (a APIKeys) Own(ctx context.Context) (*api.OwnApiKey, error) {
	return a.client.API.GetOwnApiKey(ctx)
}

// List returns the API keys of a tenant.
func (a APIKeys) List(ctx context.Context, tenantID string) ([]api.ApiKeyData, error) {
	page, err := a.client.API.ListApiKeys(ctx, tenantID, api.ListApiKeysQuery{Details: true})
	if err != nil {
		return nil, err
	}
	return page.ApiKeys, nil
}

// Create makes an API key. Its text is returned this once.
func (a APIKeys) Create(ctx context.Context, tenantID string, settings api.CreateApiKeyRequest) (*api.NewApiKeyData, error) {
	return a.client.API.CreateApiKey(ctx, tenantID, settings)
}

// Rotate makes a new API key that replaces one. After the rotation of its own key, make a new client.
func (a APIKeys) Rotate(ctx context.Context, tenantID string, settings api.RotateApiKeyRequest) (*api.RotatedApiKey, error) {
	return a.client.API.RotateApiKey(ctx, tenantID, settings)
}

// Revoke ends an API key.
func (a APIKeys) Revoke(ctx context.Context, tenantID string, version int) (*api.ApiKeyData, error) {
	return a.client.API.RevokeApiKey(ctx, tenantID, version)
}

// Audit reads the audit log.
type Audit struct{ client *Client }

// Records yields audit records, page by page. After an error it ends.
func (a Audit) Records(ctx context.Context, query api.ListAuditRecordsQuery) iter.Seq2[api.RecordData, error] {
	return pages(func(after string) ([]api.RecordData, string, error) {
		if after != "" && query.Order == "desc" {
			query.Before = after
		} else if after != "" {
			query.After = after
		}
		page, err := a.client.API.ListAuditRecords(ctx, query)
		if err != nil {
			return nil, "", err
		}
		switch next := page.Next.(type) {
		case nil:
			return page.Records, "", nil
		case string:
			return page.Records, next, nil
		case float64:
			return page.Records, strconv.FormatFloat(next, 'f', -1, 64), nil
		}
		return nil, "", malformed("a field of the response is missing or malformed", "next")
	})
}

// Export writes the records, as JSON lines for `pqkeep audit verify`, and returns their number. What is
// written is complete only if the error is nil. The call has no deadline but the context's; it fails
// when nothing arrives for 15 seconds. It is not repeated once something is written.
func (a Audit) Export(ctx context.Context, target io.Writer, query api.ExportAuditLogQuery) (int, error) {
	made := &export{client: a.client, target: target}
	if _, err := api.New(made).ExportAuditLog(ctx, query); err != nil {
		return 0, err
	}
	if !made.isComplete {
		return 0, malformed("the export has no end line", "")
	}
	return made.records, nil
}

// Keys returns the public keys that verify the log.
func (a Audit) Keys(ctx context.Context) (*api.AuditKeysData, error) {
	return a.client.API.ListAuditKeys(ctx, api.ListAuditKeysQuery{})
}

// maxEmptyPages is the most empty pages of a list in a row. So a hostile list ends.
const maxEmptyPages = 1000

// pages yields the members of a list. It refuses a list with repeated pages: it remembers one
// position, and another one whenever the number of pages has doubled.
func pages[T any](page func(after string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		after, remembered, empty := "", "", 0
		for number, renewed := 1, 1; ; number++ {
			items, next, err := page(after)
			if err != nil {
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			if empty++; len(items) > 0 {
				empty = 0
			}
			if next == remembered || next == after || empty == maxEmptyPages {
				yield(none, malformed("the pages of the list repeat", "next"))
				return
			}
			if number == renewed {
				remembered, renewed = next, renewed*2
			}
			after = next
		}
	}
}

// given returns data that JSON shows as a text, also if it is nil.
func given(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}
