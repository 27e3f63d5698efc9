package pqkeep

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"
)

const (
	defaultTimeout = 30 * time.Second
	defaultRetries = 6
	connectTimeout = 5 * time.Second
	maxAPIKeyFile  = 4096
	apiPath        = "/api/v1"
	blank          = " \t\r\n\ufeff"
)

// Config has the settings of a client. Settings that are left out are taken from the environment:
// PQKEEP_URL, PQKEEP_API_KEY or PQKEEP_API_KEY_FILE, or PQKEEP_TOKEN_FILE and PQKEEP_ROLE of a
// workload, and PQKEEP_CA_FILE.
type Config struct {
	// URL is the address of the service: https://, a host and an optional path. It may end with
	// /api/v1. http:// is for this machine only.
	URL string
	// APIKey is a tenant's API key, or the operator's credential.
	APIKey string
	// TokenFile and Role take the place of an API key: the client exchanges the token of the
	// workload's platform for a key, and renews the key. A role is the tenant's id, a slash, and
	// the role's name.
	TokenFile, Role string
	// CAFile is a file in PEM. Only the certificates in it are trusted then.
	CAFile string
	// Timeout limits a call with all its attempts and pauses. 0 means 30 seconds.
	Timeout time.Duration
	// MaxRetries is the number of attempts after the first. 0 means 6, and -1 none.
	MaxRetries int
	// AllowPlainHTTP allows http:// to other machines, for connections that are encrypted by other
	// means.
	AllowPlainHTTP bool
}

// resolved returns the settings with those of the environment, checked.
func (c Config) resolved() (Config, error) {
	var err error
	name := "the URL"
	if c.URL == "" {
		c.URL, name = os.Getenv("PQKEEP_URL"), "PQKEEP_URL"
	}
	if c.URL, err = checkedURL(c.URL, name, c.AllowPlainHTTP); err != nil {
		return c, err
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Timeout < 0 {
		return c, configurationError("the timeout must be more than 0")
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = defaultRetries
	}
	if c.CAFile == "" {
		c.CAFile = os.Getenv("PQKEEP_CA_FILE")
	}
	return c.withCredential()
}

func (c Config) withCredential() (Config, error) {
	name := "the API key"
	if c.APIKey == "" && c.TokenFile == "" && c.Role == "" {
		key, file := os.Getenv("PQKEEP_API_KEY"), os.Getenv("PQKEEP_API_KEY_FILE")
		c.TokenFile = strings.Trim(os.Getenv("PQKEEP_TOKEN_FILE"), blank)
		c.Role = strings.Trim(os.Getenv("PQKEEP_ROLE"), blank)
		switch {
		case key != "" && file != "":
			return c, configurationError("PQKEEP_API_KEY and PQKEEP_API_KEY_FILE are both set: unset one")
		case (key != "" || file != "") && (c.TokenFile != "" || c.Role != ""):
			return c, configurationError("PQKEEP_TOKEN_FILE and an API key of the environment are both set: unset one")
		case file != "":
			content, err := readSmall(file, maxAPIKeyFile, true)
			if err != nil {
				return c, configurationError("the file of PQKEEP_API_KEY_FILE " + err.Error())
			}
			name, c.APIKey = "the API key in the file of PQKEEP_API_KEY_FILE", string(content)
		default:
			name, c.APIKey = "PQKEEP_API_KEY", key
		}
	}
	if c.TokenFile != "" || c.Role != "" {
		if c.TokenFile == "" || c.Role == "" {
			return c, configurationError("PQKEEP_TOKEN_FILE and PQKEEP_ROLE belong together: set both, or neither")
		}
		if c.APIKey != "" {
			return c, configurationError("an API key and a token file are both given: remove one")
		}
		return c, nil
	}
	c.APIKey = strings.Trim(c.APIKey, blank)
	if c.APIKey == "" {
		return c, configurationError("the API key is missing: set APIKey, PQKEEP_API_KEY or PQKEEP_API_KEY_FILE, or PQKEEP_TOKEN_FILE and PQKEEP_ROLE")
	}
	if !isPrintable(c.APIKey) || strings.Contains(c.APIKey, " ") {
		return c, configurationError(name + " must be printable ASCII without spaces")
	}
	return c, nil
}

// checkedURL returns an address without /api/v1.
func checkedURL(given, name string, allowPlain bool) (string, error) {
	text := strings.Trim(given, blank)
	form := name + " must be https:// or http://, a host and an optional path: "
	if text == "" {
		return "", configurationError("the URL is missing: set URL or PQKEEP_URL")
	}
	if !isPrintable(text) || strings.ContainsAny(text, " \"'`") {
		return "", configurationError(form + "it has a space, a quotation mark or a control character")
	}
	parsed, err := url.Parse(text) // its error quotes the address, which may have a password
	switch {
	case err != nil:
		return "", configurationError(form + "host or port is wrong")
	case parsed.Scheme != "https" && parsed.Scheme != "http":
		return "", configurationError(form + "it has no scheme, or another one")
	case parsed.Hostname() == "":
		return "", configurationError(form + "it has no host")
	case parsed.User != nil:
		return "", configurationError(form + "it has a user name, which pqkeep does not use")
	case strings.ContainsAny(text, "?#"):
		return "", configurationError(form + "it has a query or a fragment")
	case parsed.Scheme == "http" && !allowPlain && !isLoopback(parsed.Hostname()):
		return "", configurationError("http:// is for this machine only: use https://, or others can read what is sent")
	}
	text = strings.TrimRight(text, "/")
	return strings.TrimRight(strings.TrimSuffix(text, apiPath), "/"), nil
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return strings.EqualFold(host, "localhost")
	}
	return address.IsLoopback()
}

func isPrintable(text string) bool {
	for _, character := range []byte(text) {
		if character < ' ' || character > '~' {
			return false
		}
	}
	return true
}

// readSmall returns a file's content. A private file must not be readable by other users.
func readSmall(name string, size int64, isPrivate bool) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		var failure *fs.PathError
		if errors.As(err, &failure) {
			err = failure.Err
		}
		return nil, errors.New("cannot be read: " + err.Error())
	}
	defer file.Close()
	if info, err := file.Stat(); isPrivate && (err != nil || info.Mode().Perm()&0o007 != 0) {
		return nil, errors.New("can be read by other users: give it the mode 0600")
	}
	content, err := io.ReadAll(io.LimitReader(file, size+1))
	if err != nil || int64(len(content)) > size {
		return nil, errors.New("cannot be read, or is too large")
	}
	return content, nil
}

// httpClient returns a client that follows no redirect, because a redirect would take the API key along.
func (c Config) httpClient() (*http.Client, error) {
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxConnsPerHost:        100,
		MaxIdleConnsPerHost:    20,
		IdleConnTimeout:        5 * time.Second,
		MaxResponseHeaderBytes: 64 * 1024,
	}
	if strings.HasPrefix(strings.ToLower(c.URL), "https:") {
		transport.Proxy = http.ProxyFromEnvironment
	}
	if c.CAFile != "" {
		content, err := readSmall(c.CAFile, 1<<20, false)
		if err != nil {
			return nil, configurationError("the CA file " + err.Error())
		}
		authorities := x509.NewCertPool()
		if !authorities.AppendCertsFromPEM(content) {
			return nil, configurationError("the CA file has no PEM certificate")
		}
		transport.TLSClientConfig.RootCAs = authorities
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// String returns the settings without the API key.
func (c Config) String() string { return "pqkeep settings for " + c.URL }

// GoString returns the same.
func (c Config) GoString() string { return c.String() }
