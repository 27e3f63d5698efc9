package pqkeep

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pqkeep/api"
)

const testKey = "pqk_the-key-of-the-test"

// serve returns a client of a server, without retries.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := New(Config{URL: server.URL, APIKey: testKey, MaxRetries: -1, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func wants(t *testing.T, err error, kind Kind) {
	t.Helper()
	var failure *Error
	if !errors.As(err, &failure) || failure.Kind != kind {
		t.Fatalf("got %v, want %v", err, kind)
	}
	if text := fmt.Sprintf("%v %+v %#v", err, err, *failure); strings.Contains(text, testKey) {
		t.Fatalf("the error has the API key: %s", text)
	}
}

// Responses without an end are not read to it, with and without a length, and in the head.
func TestEndlessResponses(t *testing.T) {
	piece := bytes.Repeat([]byte("x"), 1<<20)
	var sent atomic.Int64
	client := serve(t, func(response http.ResponseWriter, request *http.Request) {
		for {
			count, err := response.Write(piece)
			if sent.Add(int64(count)); err != nil {
				return
			}
		}
	})
	_, err := client.APIKeys.Own(t.Context())
	wants(t, err, ErrMalformedResponse)
	if sent.Load() > 2*maxResponse {
		t.Fatalf("%d bytes were read", sent.Load())
	}
	client = serve(t, func(response http.ResponseWriter, request *http.Request) {
		connection, buffer, _ := response.(http.Hijacker).Hijack()
		defer connection.Close()
		fmt.Fprint(buffer, "HTTP/1.1 200 OK\r\n")
		for number := 0; ; number++ {
			if _, err := fmt.Fprintf(buffer, "X-%d: %s\r\n", number, piece[:1000]); err != nil {
				return
			}
		}
	})
	_, err = client.APIKeys.Own(t.Context())
	wants(t, err, ErrConnectionFailed)
}

// A redirect is not followed, and the error names its target without password and query.
func TestRedirects(t *testing.T) {
	reached := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		client := serve(t, func(response http.ResponseWriter, request *http.Request) {
			target := strings.Replace(other.URL, "//", "//user:password@", 1) + "/x?token=secret#secret"
			http.Redirect(response, request, target, status)
		})
		_, err := client.KEM.Encrypt(t.Context(), []byte("a secret"), Options{})
		wants(t, err, ErrMalformedResponse)
		if !strings.Contains(err.Error(), other.URL+"/x") || strings.Contains(err.Error(), "password") || strings.Contains(err.Error(), "secret") {
			t.Fatal(err)
		}
	}
	if reached {
		t.Fatal("a redirect was followed")
	}
}

// Every generated operation sends names as one segment each, and the API key in its header only.
func TestEveryOperation(t *testing.T) {
	var line, key string
	client := serve(t, func(response http.ResponseWriter, request *http.Request) {
		line, key = request.RequestURI, request.Header.Get("X-API-Key")
		response.WriteHeader(http.StatusNotFound)
		fmt.Fprint(response, `{"error": {"error_code": "ERR_NOT_FOUND_001", "message": "no"}}`)
	})
	operations := reflect.ValueOf(client.API)
	if operations.NumMethod() < 100 {
		t.Fatalf("there are %d operations", operations.NumMethod())
	}
	for place := range operations.NumMethod() {
		name, method := operations.Type().Method(place).Name, operations.Method(place)
		for _, text := range []string{"../../x", "a/..", "a\r\nX-Injected: 1", "ä?#%2e", ".", "..", ""} {
			values, texts := []reflect.Value{reflect.ValueOf(t.Context())}, 0
			for parameter := 1; parameter < method.Type().NumIn(); parameter++ {
				value := reflect.New(method.Type().In(parameter)).Elem()
				if value.Kind() == reflect.String {
					value.SetString(text)
					texts++
				}
				values = append(values, value)
			}
			line = ""
			err, _ := method.Call(values)[1].Interface().(error)
			if texts > 0 && strings.Trim(text, ".") == "" {
				wants(t, err, ErrInvalidRequest)
				if line != "" {
					t.Fatalf("%s(%q) requested %s", name, text, line)
				}
				continue
			}
			wants(t, err, ErrNotFound)
			path, _, _ := strings.Cut(line, "?")
			if key != testKey || !strings.HasPrefix(path, "/api/v1/") || strings.Count(path, escaped(text)) < min(texts, 1) ||
				strings.Contains(path, "/../") || strings.HasSuffix(path, "/..") {
				t.Fatalf("%s(%q) requested %s", name, text, line)
			}
		}
	}
}

// Settings that could inject a header or send the key elsewhere are refused, without showing the key.
func TestRefusedSettings(t *testing.T) {
	for _, config := range []Config{
		{URL: "https://x", APIKey: "a\r\nX-Injected: 1"},
		{URL: "https://x", APIKey: "a b"},
		{URL: "https://x", APIKey: "ä"},
		{URL: "https://x", APIKey: testKey, Timeout: -1},
		{URL: "https://x", APIKey: testKey, TokenFile: "/x", Role: "t/r"},
		{URL: "https://x", TokenFile: "/x"},
		{URL: "https://x"},
		{URL: "http://example.com", APIKey: testKey},
		{URL: "http://127.0.0.1.example.com", APIKey: testKey},
		{URL: "http://localhost.example.com", APIKey: testKey},
		{URL: "https://user:" + testKey + "@x", APIKey: testKey},
		{URL: "https://x/?a", APIKey: testKey},
		{URL: "https://x\r\n", APIKey: testKey, CAFile: "/nonexistent"},
		{URL: "javascript:x", APIKey: testKey},
		{URL: "https://", APIKey: testKey},
		{APIKey: testKey},
	} {
		_, err := New(config)
		wants(t, err, ErrConfiguration)
	}
	client, err := New(Config{URL: "https://x/api/v1/", APIKey: testKey})
	if err != nil || client.URL() != "https://x" {
		t.Fatal(client, err)
	}
	config := Config{URL: "https://x", APIKey: testKey}
	if text := fmt.Sprintf("%v %+v %#v %s %v", client, client, client, config, config); strings.Contains(text, testKey) {
		t.Fatal(text)
	}
}

// Settings come from the environment, and a file with the key must be private.
func TestEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("\ufeff"+testKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PQKEEP_URL", "https://x")
	t.Setenv("PQKEEP_API_KEY_FILE", file)
	client, err := New(Config{})
	if err != nil || client.config.APIKey != testKey {
		t.Fatal(err)
	}
	t.Setenv("PQKEEP_ROLE", "tenant/role")
	_, err = New(Config{})
	wants(t, err, ErrConfiguration)
	t.Setenv("PQKEEP_ROLE", "")
	t.Setenv("PQKEEP_API_KEY", testKey)
	_, err = New(Config{})
	wants(t, err, ErrConfiguration)
	t.Setenv("PQKEEP_API_KEY", "")
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		_, err = New(Config{})
		wants(t, err, ErrConfiguration)
	}
}

// Only the authorities of the CA file are trusted, and a key goes to no other server.
func TestAuthorities(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(response, `{"data": {"keys": [], "log_id": "x", "note_key": "x"}}`)
	}))
	server.Config.ErrorLog = nil
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, block, 0o600); err != nil {
		t.Fatal(err)
	}
	trusting, err := New(Config{URL: server.URL, APIKey: testKey, CAFile: file})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trusting.Audit.Keys(t.Context()); err != nil {
		t.Fatal(err)
	}
	strict, err := New(Config{URL: server.URL, APIKey: testKey, MaxRetries: -1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = strict.Audit.Keys(t.Context())
	wants(t, err, ErrConnectionFailed)
}

// A canceled call ends at once, and its error is the context's. So is that of a deadline.
func TestContexts(t *testing.T) {
	started, ends := make(chan struct{}, 2), make(chan struct{})
	client := serve(t, func(_ http.ResponseWriter, request *http.Request) {
		started <- struct{}{}
		<-ends
	})
	defer close(ends)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	_, err := client.APIKeys.Own(ctx)
	wants(t, err, ErrCanceled)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client.APIKeys.Own(ctx)
	wants(t, err, ErrDeadlineExceeded)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
}

// A list with repeated or empty pages ends with an error.
func TestListsThatNeverEnd(t *testing.T) {
	for _, places := range [][]string{{"a"}, {"a", "b", "c"}, nil} {
		number := 0
		client := serve(t, func(response http.ResponseWriter, _ *http.Request) {
			next := fmt.Sprint(number)
			if places != nil {
				next = places[number%len(places)]
			}
			number++
			fmt.Fprintf(response, `{"data": {"keyrings": [], "next": %q, "total": 1}}`, next)
		})
		for _, err := range client.Keyrings.List(t.Context(), api.ListKeyringsQuery{}) {
			wants(t, err, ErrMalformedResponse)
		}
		if number > maxEmptyPages {
			t.Fatalf("%d pages were read", number)
		}
	}
}

// Goroutines share a client, and a workload's key is exchanged once for all of them.
func TestGoroutinesShareAWorkload(t *testing.T) {
	var exchanges atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if strings.HasSuffix(request.URL.Path, "/auth/token") {
			exchanges.Add(1)
			if request.Header.Get("X-API-Key") != "" {
				t.Error("the exchange has an API key")
			}
			fmt.Fprintf(response, `{"data": {"access_token": %q, "expires_at": "2030-01-01T00:00:00Z", "expires_in": 600,
				"issued_token_type": "x", "scopes": [], "token_type": "x"}}`, testKey)
			return
		}
		if request.Header.Get("X-API-Key") != testKey {
			t.Error("the call has another API key")
		}
		fmt.Fprint(response, `{"data": {"keys": [], "log_id": "x", "note_key": "x"}}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a.b.c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := New(Config{URL: server.URL, TokenFile: file, Role: "tenant/role"})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			if _, err := client.Audit.Keys(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if exchanges.Load() != 1 {
		t.Fatalf("%d exchanges", exchanges.Load())
	}
	for _, content := range []string{"", "a b", "a\r\nX: 1", strings.Repeat("a", maxToken+1)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		client, err = New(Config{URL: server.URL, TokenFile: file, Role: "tenant/role"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Audit.Keys(t.Context())
		wants(t, err, ErrConfiguration)
	}
}

// Texts of the service reach a message without control characters, and shortened.
func TestMessages(t *testing.T) {
	client := serve(t, func(response http.ResponseWriter, _ *http.Request) {
		response.WriteHeader(http.StatusConflict)
		said := object{"error_code": "ERR_CONFLICT_001\x1b[31m", "message": "a\r\nb\u009b" + strings.Repeat("x", 1<<20)}
		content, _ := json.Marshal(object{"error": said, "request_id": "r\n" + strings.Repeat("x", 1000)})
		response.Write(content)
	})
	_, err := client.APIKeys.Own(t.Context())
	wants(t, err, ErrConflict)
	if text := err.Error(); len(text) > 2000 || strings.ContainsAny(text, "\r\n\x1b\u009b") {
		t.Fatalf("%q", text)
	}
}

type object = map[string]any

// A file appears when it is complete. Nothing is left after a failure, and no file is replaced.
func TestFilesAreAtomic(t *testing.T) {
	folder := t.TempDir()
	source, target := filepath.Join(folder, "source"), filepath.Join(folder, "target")
	if err := os.WriteFile(source, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("the disk is full")
	err := convert(source, target, false, func(to io.Writer, _ io.Reader) error {
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal("the file is there before it is complete")
		}
		to.Write([]byte("half"))
		return failure
	})
	entries, _ := os.ReadDir(folder)
	if !errors.Is(err, failure) || len(entries) != 1 {
		t.Fatal(err, entries)
	}
	copied := func(to io.Writer, from io.Reader) error { _, err := io.Copy(to, from); return err }
	if err := convert(source, target, false, copied); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(target)
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	if err := convert(source, target, false, copied); !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	if err := convert(source, target, true, copied); err != nil {
		t.Fatal(err)
	}
}

// Damaged and random headers are refused, and never end the program.
func FuzzLocal(f *testing.F) {
	key, secret := Recipient{Algorithm: "Kyber768", KeyVersion: 1}, make([]byte, keySize)
	f.Add([]byte(magic + "\x02\x01\x00\x00\x00\x76"))
	f.Add([]byte(key.Algorithm))
	f.Fuzz(func(t *testing.T, data []byte) {
		err := DecryptLocal(io.Discard, bytes.NewReader(data), func(WrappedKey) ([]byte, error) { return secret, nil })
		if !errors.Is(err, ErrInvalidRequest) {
			t.Fatal(err)
		}
	})
}

// Errors of readers, writers and the holder of the key are returned as they are.
func TestErrorsOfOthers(t *testing.T) {
	failure := errors.New("broken")
	broken := io.MultiReader(strings.NewReader(magic), failing{failure})
	if _, err := ReadLocalHeader(broken); !errors.Is(err, failure) {
		t.Fatal(err)
	}
	if err := EncryptLocal(failing{failure}, strings.NewReader(""), nil, 0); !errors.Is(err, ErrInvalidRequest) {
		t.Fatal(err)
	}
	if err := EncryptLocal(io.Discard, failing{failure}, []Recipient{{Algorithm: "X-Wing"}}, 0); !errors.Is(err, ErrInvalidRequest) {
		t.Fatal(err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

// An export is complete only if its last line is an end line, and is not repeated once it is begun.
func TestExports(t *testing.T) {
	end := `{"type":"end","records":2}` + "\n"
	for body, records := range map[string]int{
		"{}\n" + end:              2,
		end + "{}\n" + end:        4,
		"":                        -1,
		"{}\n":                    -1,
		end + "{}\n":              -1,
		end[:len(end)-1]:          -1,
		`{"type":"end"}` + "\n":   -1,
		`{"a":` + end:             -1,
		end[:len(end)-2] + ",}\n": -1,
	} {
		requests := 0
		client := serve(t, func(response http.ResponseWriter, request *http.Request) {
			requests++
			for _, letter := range []byte(body) { // in pieces
				response.Write([]byte{letter})
				response.(http.Flusher).Flush()
			}
		})
		var target bytes.Buffer
		count, err := client.Audit.Export(t.Context(), &target, api.ExportAuditLogQuery{})
		if target.String() != body || requests != 1 {
			t.Fatalf("%q: %q, %d requests", body, target.String(), requests)
		}
		if records >= 0 && (err != nil || count != records) {
			t.Fatalf("%q: %d records, %v", body, count, err)
		}
		if records < 0 {
			wants(t, err, ErrMalformedResponse)
		}
	}
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		requests++
		response.Header().Set("Content-Length", "1000")
		fmt.Fprint(response, "{}\n")
	}))
	t.Cleanup(server.Close)
	client, err := New(Config{URL: server.URL, APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Audit.Export(t.Context(), io.Discard, api.ExportAuditLogQuery{})
	if wants(t, err, ErrConnectionFailed); requests != 1 {
		t.Fatalf("%d requests", requests)
	}
}

// Items are sent in requests of at most 128 items and 4 MiB, and results keep their order.
func TestManyItems(t *testing.T) {
	sizes := []int{}
	client := serve(t, func(response http.ResponseWriter, request *http.Request) {
		var body struct{ Items []api.EncryptRequest }
		content, _ := io.ReadAll(request.Body)
		if len(content) > 4<<20 || json.Unmarshal(content, &body) != nil {
			response.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		sizes = append(sizes, len(body.Items))
		results := []any{}
		for _, item := range body.Items {
			data := map[string]any{"ciphertext": append([]byte("c"), item.Plaintext[:1]...), "key_version": 1, "algorithm": "Kyber768"}
			results = append(results, map[string]any{"data": data})
		}
		json.NewEncoder(response).Encode(map[string]any{"data": map[string]any{"results": results}})
	})
	plaintexts := [][]byte{}
	for place := range 300 {
		plaintexts = append(plaintexts, []byte{byte(place)})
	}
	for range 5 {
		plaintexts = append(plaintexts, make([]byte, 1<<20))
	}
	results, err := client.KEM.EncryptMany(t.Context(), plaintexts, Options{})
	if err != nil || len(results) != len(plaintexts) {
		t.Fatal(len(results), err)
	}
	for place, result := range results {
		if result.Err != nil || result.Value.Ciphertext[1] != plaintexts[place][0] {
			t.Fatal(place, result)
		}
	}
	if fmt.Sprint(sizes) != "[128 128 46 2 1]" {
		t.Fatal(sizes)
	}
	if results, err := client.KEM.EncryptMany(t.Context(), nil, Options{}); err != nil || len(results) != 0 {
		t.Fatal(results, err)
	}
}
