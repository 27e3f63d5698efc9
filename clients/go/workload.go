package pqkeep

import (
	"context"
	"strings"
	"sync"
	"time"

	"pqkeep/api"
)

const (
	maxToken = 12 * 1024
	// retrySeconds is the pause after a failed renewal of a key that is still valid.
	renewalPause = 15 * time.Second
	grantType    = "urn:ietf:params:oauth:grant-type:token-exchange"
	jwtType      = "urn:ietf:params:oauth:token-type:jwt"
)

// A workload has the short-lived API key of its role, exchanged for its platform's token.
type workload struct {
	role, tokenFile string

	renewing chan struct{} // one exchange at a time

	mutex           sync.Mutex
	text            string
	renewAt, endsAt time.Time
}

func newWorkload(role, tokenFile string) *workload {
	return &workload{role: role, tokenFile: tokenFile, renewing: make(chan struct{}, 1)}
}

// state returns the key, and whether it is valid and must be renewed.
func (w *workload) state() (key string, isValid, isDue bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := time.Now()
	isValid = w.text != "" && now.Before(w.endsAt)
	return w.text, isValid, !isValid || !now.Before(w.renewAt)
}

// key returns the key. It gets or renews it first if it is due.
func (w *workload) key(ctx context.Context, client *Client) (string, error) {
	key, isValid, isDue := w.state()
	if !isDue {
		return key, nil
	}
	select {
	case w.renewing <- struct{}{}:
	default:
		if isValid {
			return key, nil // another call renews it
		}
		select {
		case w.renewing <- struct{}{}:
		case <-ctx.Done():
			return "", (&call{}).ended(ctx)
		}
	}
	defer func() { <-w.renewing }()
	if key, _, isDue = w.state(); !isDue {
		return key, nil
	}
	made, err := w.exchange(ctx, client)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := time.Now()
	if err != nil {
		if w.text == "" || !now.Before(w.endsAt) {
			return "", err
		}
		w.renewAt = now.Add(renewalPause)
		return w.text, nil
	}
	life := time.Duration(made.ExpiresIn) * time.Second
	w.text, w.endsAt, w.renewAt = made.AccessToken, now.Add(life), now.Add(life/3*2)
	return w.text, nil
}

// forget drops a key that the service refused, unless there is a new one.
func (w *workload) forget(refused string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.text == refused {
		w.text = ""
	}
}

func (w *workload) exchange(ctx context.Context, client *Client) (*api.ExchangedToken, error) {
	token, err := w.token()
	if err != nil {
		return nil, err
	}
	var made api.ExchangedToken
	request := api.Request{
		Method: "POST",
		Path:   api.Path(apiPath + "/auth/token"),
		Body: map[string]string{
			"grant_type": grantType, "subject_token": token, "subject_token_type": jwtType, "role": w.role,
		},
	}
	err = client.runWith(ctx, request, "", func(body []byte, call *call) error { return call.decode(body, &made) }, nil)
	if err != nil {
		return nil, err
	}
	if !isPrintable(made.AccessToken) || made.AccessToken == "" {
		return nil, malformed("a field of the response is missing or malformed", "access_token")
	}
	return &made, nil
}

// token returns the token. The platform replaces its file.
func (w *workload) token() (string, error) {
	content, err := readSmall(w.tokenFile, maxToken, false)
	if err != nil {
		return "", configurationError("the token's file " + err.Error())
	}
	token := strings.Trim(string(content), blank)
	if token == "" || !isPrintable(token) || strings.Contains(token, " ") {
		return "", configurationError("the token's file has no token: a signed JWT")
	}
	return token, nil
}
