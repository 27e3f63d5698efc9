package pqkeep

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pqkeep/api"
)

const (
	firstPause     = 100 * time.Millisecond
	longestPause   = 5 * time.Second
	attemptTimeout = 15 * time.Second
	// maxResponse is the most bytes of a response.
	maxResponse = 64 << 20
	longestWait = 999_999_999 * time.Second
	maxMessage  = 1000
)

// Call makes the calls of [Client.API].
func (c *Client) Call(ctx context.Context, request api.Request, result any) error {
	return c.run(ctx, request, func(body []byte, call *call) error { return call.decode(body, result) }, nil)
}

// Text makes the calls of [Client.API] that have no envelope.
func (c *Client) Text(ctx context.Context, request api.Request) ([]byte, error) {
	var text []byte
	err := c.run(ctx, request, func(body []byte, _ *call) error { text = body; return nil }, nil)
	return text, err
}

type reader func(body []byte, call *call) error

// run makes a call with the client's credential. A workload's refused key is replaced once. With a
// target, the body of a successful response is written to it.
func (c *Client) run(ctx context.Context, request api.Request, read reader, target io.Writer) error {
	if c.workload == nil {
		return c.runWith(ctx, request, c.config.APIKey, read, target)
	}
	key, err := c.workload.key(ctx, c)
	if err != nil {
		return err
	}
	err = c.runWith(ctx, request, key, read, target)
	if !errors.Is(err, ErrAuthentication) {
		return err
	}
	c.workload.forget(key)
	if key, err = c.workload.key(ctx, c); err != nil {
		return err
	}
	return c.runWith(ctx, request, key, read, target)
}

// A call is one request with all its attempts.
type call struct {
	client    *Client
	request   api.Request
	url       string
	body      []byte
	header    http.Header
	requestID string
	read      reader
	target    io.Writer
	isBegun   bool // something is written to the target
}

func (c *Client) runWith(ctx context.Context, request api.Request, key string, read reader, target io.Writer) error {
	made, err := c.newCall(request, key, read)
	if err != nil {
		return err
	}
	made.target = target
	bounded, ends := ctx, time.Now().Add(c.config.Timeout)
	if target == nil {
		var cancel context.CancelFunc
		bounded, cancel = context.WithDeadline(ctx, ends)
		defer cancel()
	}
	for retries := 0; ; retries++ {
		failure := made.attempt(ctx, bounded)
		if failure == nil {
			return nil
		}
		pause := pauseAfter(failure, retries)
		if made.isBegun || !failure.Kind.isRetried() || retries >= c.config.MaxRetries || pause >= time.Until(ends) {
			return failure
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-bounded.Done():
			timer.Stop()
			return made.ended(ctx)
		}
	}
}

// pauseAfter returns the pause before the next attempt. It doubles, and half of it is random.
func pauseAfter(failure *Error, retries int) time.Duration {
	usual := min(firstPause<<min(retries, 10), longestPause)
	jitter := mathrand.N(usual/2 + 1)
	if failure.RetryAfter != nil {
		return *failure.RetryAfter + jitter
	}
	return usual/2 + jitter
}

func (c *Client) newCall(request api.Request, key string, read reader) (*call, error) {
	path, err := joined(request.Path)
	if err != nil {
		return nil, err
	}
	made := &call{
		client:    c,
		request:   request,
		url:       c.config.URL + path,
		requestID: newID(),
		read:      read,
	}
	made.header = http.Header{
		"Accept":          {"application/json"},
		"Accept-Encoding": {"identity"},
		"User-Agent":      {"pqkeep-go"},
		"X-Request-Id":    {made.requestID},
	}
	if len(request.Query) > 0 {
		made.url += "?" + request.Query.Encode()
	}
	if key != "" {
		made.header.Set("X-API-Key", key)
	}
	if request.Changes {
		made.header.Set("Idempotency-Key", newID())
	}
	if request.Body != nil {
		if made.body, err = json.Marshal(request.Body); err != nil {
			return nil, &Error{Kind: ErrInvalidRequest, Message: "a value cannot be sent as JSON"}
		}
		made.header.Set("Content-Type", "application/json")
	}
	return made, nil
}

// joined returns the path of literal parts and names in turn. The path of an empty name, of . or of
// .. would be that of something else.
func joined(parts []string) (string, error) {
	var path strings.Builder
	for place, part := range parts {
		if place%2 == 0 {
			path.WriteString(part)
			continue
		}
		if part == "" || part == "." || part == ".." {
			return "", &Error{Kind: ErrInvalidRequest, Message: "a name is empty, . or ..: use another name"}
		}
		path.WriteString(escaped(part))
	}
	return path.String(), nil
}

// escaped returns a name as a segment of a path. url.PathEscape leaves characters such as : as they
// are, which a proxy may read in another way.
func escaped(name string) string {
	return strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
}

// newID returns a random UUID (version 4).
func newID() string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	random[6], random[8] = random[6]&0x0f|0x40, random[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
}

// attempt makes one attempt. The first context is the caller's.
func (c *call) attempt(caller, bounded context.Context) *Error {
	ctx, cancel := context.WithCancel(bounded)
	defer cancel()
	watch := time.AfterFunc(attemptTimeout, cancel)
	defer watch.Stop()
	request, err := http.NewRequestWithContext(ctx, c.request.Method, c.url, bytes.NewReader(c.body))
	if err != nil {
		return &Error{Kind: ErrInvalidRequest, Message: "the request has no valid URL"}
	}
	if c.body == nil {
		request.Body, request.GetBody, request.ContentLength = nil, nil, 0
	}
	request.Header = c.header.Clone()
	response, err := c.client.http.Do(request)
	if err != nil {
		return c.failure(caller, ctx, err, "the service cannot be reached")
	}
	defer response.Body.Close()
	if encoding := response.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return c.malformed(response, "the Content-Encoding of the response was not requested")
	}
	if c.target != nil && response.StatusCode == http.StatusOK {
		return c.copy(caller, ctx, response.Body, watch)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return c.failure(caller, ctx, err, "the connection broke before the response was complete")
	}
	if len(body) > maxResponse {
		return c.malformed(response, "the response is too large")
	}
	return c.take(response, body)
}

// copy writes a body to the target. The watch ends it when nothing arrives.
func (c *call) copy(caller, ctx context.Context, body io.Reader, watch *time.Timer) *Error {
	piece := make([]byte, 64<<10)
	for {
		count, err := body.Read(piece)
		if count > 0 {
			watch.Stop() // the target may take its time
			c.isBegun = true
			if _, err := c.target.Write(piece[:count]); err != nil {
				return &Error{Kind: ErrOther, Message: "the target cannot be written", RequestID: c.requestID, cause: err}
			}
			watch.Reset(attemptTimeout)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return c.failure(caller, ctx, err, "the connection broke before the response was complete")
		}
	}
}

func (c *call) ended(caller context.Context) *Error {
	if errors.Is(caller.Err(), context.Canceled) {
		return &Error{Kind: ErrCanceled, Message: "the call was canceled", RequestID: c.requestID, cause: context.Canceled}
	}
	return &Error{
		Kind: ErrDeadlineExceeded, Message: "the service did not respond in time",
		RequestID: c.requestID, cause: context.DeadlineExceeded,
	}
}

// failure returns the error for a missing or incomplete response.
func (c *call) failure(caller, ctx context.Context, err error, what string) *Error {
	if ctx.Err() != nil {
		return c.ended(caller)
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return c.ended(caller)
	}
	var outer *url.Error // its text has the URL
	if errors.As(err, &outer) {
		what += ": " + shown(outer.Err.Error())
	}
	return &Error{Kind: ErrConnectionFailed, Message: what, RequestID: c.requestID}
}

func (c *call) malformed(response *http.Response, message string) *Error {
	if response.StatusCode >= 300 && response.StatusCode < 400 {
		message = "the address redirects" + place(response) + ": if that is the service, use that address"
	}
	return &Error{
		Kind: ErrMalformedResponse, Message: message, Status: response.StatusCode, RequestID: c.requestID,
	}
}

// place returns the target of a redirect, without a password and a query.
func place(response *http.Response) string {
	target, err := response.Location()
	if err != nil {
		return ""
	}
	target.User, target.RawQuery, target.Fragment = nil, "", ""
	return ", to " + shown(target.String())
}

// An envelope is the form of every response.
type envelope struct {
	Data      json.RawMessage `json:"data,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
	RequestID json.RawMessage `json:"request_id,omitempty"`
}

// take returns the error of an error response, or reads the result.
func (c *call) take(response *http.Response, body []byte) *Error {
	isSuccess := response.StatusCode >= 200 && response.StatusCode < 300
	if isSuccess {
		if err := c.read(body, c); err != nil {
			failure := err.(*Error)
			failure.Status, failure.RequestID = response.StatusCode, c.requestID
			if kind := form(body, response); kind != "" {
				failure.Message += ": " + kind
			}
			return failure
		}
		return nil
	}
	var said struct {
		Code    string `json:"error_code,omitempty"`
		Message string `json:"message,omitempty"`
		Field   string `json:"field,omitempty"`
	}
	var outer envelope
	if strictJSON(body) == nil && fill(body, &outer) == "" && fill(outer.Error, &said) != "" {
		said.Code = ""
	}
	kind, isKnown := kindsByStatus[response.StatusCode]
	if !isKnown {
		kind = ErrOther
	}
	if said.Code == "" && !kind.isRetried() {
		message := "the response is not from pqkeep"
		if described := form(body, response); described != "" {
			message += ": " + described
		}
		return c.malformed(response, message)
	}
	if special, isSpecial := kindsByCode[said.Code]; isSpecial {
		kind = special
	}
	message := shown(said.Message)
	if message == "" {
		message = "the service gave no reason"
	}
	requestID := c.requestID
	var own string
	if json.Unmarshal(outer.RequestID, &own) == nil && own != "" && len(own) <= 128 {
		requestID = shown(own)
	}
	return &Error{
		Kind: kind, Code: shown(said.Code), Message: message, Field: shown(said.Field),
		Status: response.StatusCode, RequestID: requestID, RetryAfter: retryAfter(response.Header),
	}
}

// decode reads the data of a response.
func (c *call) decode(body []byte, result any) error {
	var outer envelope
	if strictJSON(body) != nil || fill(body, &outer) != "" || !isObject(outer.Data) {
		return malformed("the response is not from pqkeep", "")
	}
	if field := differs(c.body, c.request.Query, outer.Data); field != "" {
		return malformed("the response is about another key than the request", field)
	}
	if field := fill(outer.Data, result); field != "" {
		return malformed("a field of the response is missing or malformed", field)
	}
	return nil
}

// form describes a body that is not JSON, or returns an empty text.
func form(body []byte, response *http.Response) string {
	start := bytes.TrimLeft(body[:min(len(body), 64)], "\ufeff \t\r\n")
	switch {
	case len(start) == 0:
		return "the body is empty"
	case start[0] == '<' || strings.Contains(response.Header.Get("Content-Type"), "html"):
		return "it is a web page of a proxy, a sign-in page or another service"
	}
	return ""
}

// retryAfter returns the time in Retry-After, a number of seconds or a date. A date is compared with
// the response's own, because this machine's clock may be wrong.
func retryAfter(header http.Header) *time.Duration {
	text := strings.Trim(header.Get("Retry-After"), blank)
	if text == "" {
		return nil
	}
	if strings.Trim(text, "0123456789") == "" {
		wait := longestWait
		if seconds, err := strconv.ParseInt(text, 10, 64); err == nil && seconds < int64(longestWait/time.Second) {
			wait = time.Duration(seconds) * time.Second
		}
		return &wait
	}
	ends, err := http.ParseTime(text)
	if err != nil {
		return nil
	}
	begins, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		begins = time.Now()
	}
	seconds := math.Ceil(ends.Sub(begins).Seconds())
	wait := time.Duration(max(0, min(seconds, longestWait.Seconds()))) * time.Second
	return &wait
}

// shown returns a text of the service for a message: short, and without control characters.
func shown(text string) string {
	clean := strings.Map(func(character rune) rune {
		if character < ' ' || character == 0x7f || character >= 0x80 && character < 0xa0 {
			return -1
		}
		return character
	}, strings.ToValidUTF8(text, ""))
	if runes := []rune(clean); len(runes) > maxMessage {
		return string(runes[:maxMessage])
	}
	return clean
}
