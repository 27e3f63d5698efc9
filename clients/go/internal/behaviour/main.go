// Behaviour runs the cases of the behaviour suite with the Go client: see tests/clients/driver.py.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pqkeep"
	"pqkeep/api"
)

type caseOf struct {
	Name   string
	Client struct {
		BaseURL   string   `json:"base_url"`
		APIKey    string   `json:"api_key"`
		TokenFile string   `json:"token_file"`
		Role      string   `json:"role"`
		Timeout   *float64 `json:"timeout"`
		Retries   *int     `json:"retries"`
	}
	Calls []struct {
		Call      string
		Arguments map[string]json.RawMessage
	}
}

type object = map[string]any

var errNoResult = errors.New("an argument is the result of a failed call")

func main() {
	log.SetFlags(0)
	content, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var input struct{ Cases []caseOf }
	if err := json.Unmarshal(content, &input); err != nil {
		log.Fatal(err)
	}
	var group sync.WaitGroup
	var output sync.Mutex
	running := make(chan struct{}, 16)
	for _, each := range input.Cases {
		running <- struct{}{}
		group.Go(func() {
			defer func() { <-running }()
			line, err := json.Marshal(object{"name": each.Name, "results": each.run()})
			if err != nil {
				log.Fatal(err)
			}
			output.Lock()
			defer output.Unlock()
			fmt.Println(string(line))
		})
	}
	group.Wait()
}

func (c caseOf) run() []object {
	config := pqkeep.Config{
		URL: c.Client.BaseURL, APIKey: c.Client.APIKey, TokenFile: c.Client.TokenFile, Role: c.Client.Role,
	}
	if config.TokenFile != "" {
		config.APIKey = ""
	}
	if seconds := c.Client.Timeout; seconds != nil {
		config.Timeout = time.Duration(*seconds * float64(time.Second))
		if *seconds == 0 {
			config.Timeout = -1
		}
	}
	if retries := c.Client.Retries; retries != nil {
		config.MaxRetries = *retries
		if *retries == 0 {
			config.MaxRetries = -1
		}
	}
	client, failure := pqkeep.New(config)
	results, values := []object{}, []object{}
	for _, call := range c.Calls {
		began := time.Now()
		value, left := object(nil), []string{}
		err := failure
		if err == nil {
			value, left, err = perform(client, call.Call, given(call.Arguments, values))
		}
		result := object{"value": value}
		if errors.Is(err, errNoResult) {
			result = object{"skipped": "result"}
		} else if err != nil {
			result = object{"error": shown(err), "left": left}
		}
		result["seconds"] = time.Since(began).Seconds()
		results, values = append(results, result), append(values, value)
	}
	return results
}

func shown(err error) object {
	var failure *pqkeep.Error
	if !errors.As(err, &failure) {
		return object{"kind": "another error: " + err.Error()}
	}
	shown := object{"kind": string(failure.Kind), "message": failure.Error()}
	for name, value := range map[string]string{"code": failure.Code, "field": failure.Field, "request_id": failure.RequestID} {
		if value != "" {
			shown[name] = value
		}
	}
	if failure.Status != 0 {
		shown["status"] = failure.Status
	}
	if failure.RetryAfter != nil {
		shown["retry_after"] = failure.RetryAfter.Seconds()
	}
	return shown
}

// arguments have the values of a call, by name.
type arguments struct {
	values  map[string]json.RawMessage
	missing bool
}

// given replaces references to earlier results.
func given(raw map[string]json.RawMessage, results []object) arguments {
	made := arguments{values: map[string]json.RawMessage{}}
	for name, value := range raw {
		var reference struct {
			Result *int
			Field  string
		}
		if bytes.HasPrefix(value, []byte("{")) && json.Unmarshal(value, &reference) == nil && reference.Result != nil {
			earlier, isThere := results[*reference.Result][reference.Field]
			if !isThere {
				made.missing = true
			}
			value, _ = json.Marshal(earlier)
		}
		made.values[name] = value
	}
	return made
}

func take[T any](a arguments, name string) (value T) {
	if raw, isThere := a.values[name]; isThere {
		if err := json.Unmarshal(raw, &value); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
	}
	return value
}

func perform(client *pqkeep.Client, name string, a arguments) (object, []string, error) {
	if a.missing {
		return nil, nil, errNoResult
	}
	ctx := context.Background()
	text := func(name string) string { return take[string](a, name) }
	data := func(name string) []byte { return take[[]byte](a, name) }
	number := func(name string) int { return take[int](a, name) }
	algorithm, keyring, version := text("algorithm"), text("keyring"), number("key_version")
	options := pqkeep.Options{
		Algorithm: algorithm, Keyring: keyring, AssociatedData: data("associated_data"), Context: data("context"),
	}
	active := options
	active.KeyVersion = version
	localOptions := pqkeep.LocalOptions{Algorithm: algorithm, Keyring: keyring}
	switch name {
	case "kem.encrypt":
		return fields(client.KEM.Encrypt(ctx, data("plaintext"), active))
	case "kem.encrypt_to_envelope":
		return fields(client.KEM.EncryptToEnvelope(ctx, data("plaintext"), active))
	case "kem.decrypt":
		return named("plaintext")(client.KEM.Decrypt(ctx, data("ciphertext"), version, options))
	case "kem.decrypt_envelope":
		return named("plaintext")(client.KEM.DecryptEnvelope(ctx, text("envelope"), options))
	case "kem.encrypt_many":
		plaintexts := [][]byte{}
		for _, item := range take[[]map[string][]byte](a, "items") {
			plaintexts = append(plaintexts, item["plaintext"])
		}
		made, err := client.KEM.EncryptMany(ctx, plaintexts, options)
		return many(made, err, func(sealed *pqkeep.Ciphertext) any {
			value, _, _ := fields(sealed, nil)
			return value
		})
	case "kem.decrypt_many":
		sealed := []pqkeep.Ciphertext{}
		for _, item := range take[[]struct {
			Ciphertext []byte
			KeyVersion int `json:"key_version"`
			Algorithm  string
		}](a, "items") {
			sealed = append(sealed, pqkeep.Ciphertext(item))
		}
		made, err := client.KEM.DecryptMany(ctx, sealed, options)
		return many(made, err, func(plaintext []byte) any { return object{"plaintext": plaintext} })
	case "audit.export":
		records, err := client.Audit.Export(ctx, io.Discard, api.ExportAuditLogQuery{})
		return object{"records": records}, nil, err
	case "kem.encapsulate":
		return fields(client.KEM.Encapsulate(ctx, version, options))
	case "kem.decapsulate":
		return named("shared_secret")(client.KEM.Decapsulate(ctx, data("kem_ciphertext"), version, options))
	case "kem.wrap":
		return fields(client.KEM.Wrap(ctx, data("symmetric_key"), version, options))
	case "kem.unwrap":
		return named("symmetric_key")(client.KEM.Unwrap(ctx, data("wrapped_key"), version, options))
	case "signatures.sign":
		return fields(client.Signatures.Sign(ctx, data("message"), active))
	case "signatures.verify":
		valid, err := client.Signatures.Verify(ctx, data("message"), data("signature"), version, options)
		return object{"valid": valid}, nil, err
	case "macs.compute":
		return fields(client.MACs.Compute(ctx, data("message"), active))
	case "macs.verify":
		valid, err := client.MACs.Verify(ctx, data("message"), data("mac"), version, options)
		return object{"valid": valid}, nil, err
	case "keys.generate":
		return fields(client.Keys.Generate(ctx, algorithm, keyring, take[bool](a, "if_absent")))
	case "keys.rotate":
		return fields(client.Keys.Rotate(ctx, algorithm, keyring))
	case "keys.retire":
		return fields(client.Keys.Retire(ctx, algorithm, keyring, version))
	case "keys.active":
		return fields(client.Keys.Active(ctx, algorithm, keyring))
	case "keys.list":
		return items(client.Keys.List(ctx, api.ListKeysQuery{Algorithm: algorithm, Keyring: keyring}))
	case "keyrings.create":
		return fields(client.Keyrings.Create(ctx, api.CreateKeyringRequest{Name: text("name")}))
	case "keyrings.get":
		return fields(client.Keyrings.Get(ctx, text("name")))
	case "keyrings.list":
		return items(client.Keyrings.List(ctx, api.ListKeyringsQuery{}))
	case "api_keys.own":
		return fields(client.APIKeys.Own(ctx))
	case "audit.records":
		return items(client.Audit.Records(ctx, api.ListAuditRecordsQuery{Operation: text("operation")}))
	case "audit.keys":
		return fields(client.Audit.Keys(ctx))
	case "local.encrypt":
		for _, algorithm := range take[[]string](a, "recipients") {
			recipient, err := client.Local.Recipient(ctx, algorithm, "")
			if err != nil {
				return nil, nil, err
			}
			localOptions.Recipients = append(localOptions.Recipients, recipient)
		}
		return named("ciphertext")(client.Local.Encrypt(ctx, data("plaintext"), localOptions))
	case "local.decrypt":
		return named("plaintext")(client.Local.Decrypt(ctx, data("ciphertext")))
	case "local.decrypt_with":
		secrets := take[map[string][]byte](a, "secrets")
		var target bytes.Buffer
		err := pqkeep.DecryptLocal(&target, bytes.NewReader(data("ciphertext")),
			func(recipient pqkeep.WrappedKey) ([]byte, error) { return secrets[recipient.Algorithm], nil })
		return named("plaintext")(target.Bytes(), err)
	case "local.encrypt_file":
		return withFiles(data("content"), func(source, target string) error {
			return client.Local.EncryptFile(ctx, source, target, localOptions)
		})
	case "local.decrypt_file":
		return withFiles(data("content"), func(source, target string) error {
			return client.Local.DecryptFile(ctx, source, target, localOptions)
		})
	}
	log.Fatalf("unknown call %s", name)
	return nil, nil, nil
}

// fields returns a result's fields under the names of the API.
func fields[T any](result *T, err error) (object, []string, error) {
	if err != nil {
		return nil, nil, err
	}
	switch made := any(result).(type) {
	case *pqkeep.Ciphertext:
		return object{"ciphertext": made.Ciphertext, "key_version": made.KeyVersion, "algorithm": made.Algorithm}, nil, nil
	case *pqkeep.Envelope:
		return object{"envelope": made.Envelope, "key_version": made.KeyVersion, "algorithm": made.Algorithm}, nil, nil
	}
	var value object
	content, err := json.Marshal(result)
	if err == nil {
		err = json.Unmarshal(content, &value)
	}
	return value, nil, err
}

func many[T any](results []pqkeep.Result[T], err error, shown func(T) any) (object, []string, error) {
	items := []any{}
	for _, result := range results {
		var failure *pqkeep.Error
		if errors.As(result.Err, &failure) {
			items = append(items, object{"error": object{"code": failure.Code}})
			continue
		}
		items = append(items, shown(result.Value))
	}
	return object{"items": items}, nil, err
}

func named(name string) func([]byte, error) (object, []string, error) {
	return func(data []byte, err error) (object, []string, error) {
		if data == nil {
			data = []byte{}
		}
		return object{name: data}, nil, err
	}
}

func items[T any](members iter.Seq2[T, error]) (object, []string, error) {
	found := []T{}
	for member, err := range members {
		if err != nil {
			return nil, nil, err
		}
		found = append(found, member)
	}
	return object{"items": found}, nil, nil
}

// withFiles returns the content and mode of the new file, and the names of other files.
func withFiles(content []byte, convert func(source, target string) error) (object, []string, error) {
	folder, err := os.MkdirTemp("", "pqkeep-behaviour-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	source, target := filepath.Join(folder, "source"), filepath.Join(folder, "target")
	if err := os.WriteFile(source, content, 0o600); err != nil {
		log.Fatal(err)
	}
	failure := convert(source, target)
	entries, err := os.ReadDir(folder)
	if err != nil {
		log.Fatal(err)
	}
	left, hasTarget := []string{}, false
	for _, entry := range entries {
		switch entry.Name() {
		case "source":
		case "target":
			hasTarget = true
		default:
			left = append(left, entry.Name())
		}
	}
	if failure != nil {
		if hasTarget {
			left = append(left, "target")
		}
		return nil, left, failure
	}
	info, err := os.Stat(target)
	if err != nil {
		log.Fatal(err)
	}
	made, err := os.ReadFile(target)
	if err != nil {
		log.Fatal(err)
	}
	return object{"content": made, "mode": fmt.Sprintf("%o", info.Mode().Perm()), "left": left}, nil, nil
}
