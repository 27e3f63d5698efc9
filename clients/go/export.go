package pqkeep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	"pqkeep/api"
)

// maxEndLine is the most bytes of an end line.
const maxEndLine = 64 << 10

var endLine = []byte(`{"type":"end"`)

// An export is a caller that writes a response of JSON lines as it arrives. Each log ends with a line
// that has the number of its records.
type export struct {
	client     *Client
	target     io.Writer
	line       []byte // the present line, if it may be an end line
	isOther    bool   // the present line is no end line
	records    int
	isComplete bool // the last line is an end line
}

// Call is never used: an export has no envelope.
func (e *export) Call(context.Context, api.Request, any) error { return errors.ErrUnsupported }

// Text writes the body to the target.
func (e *export) Text(ctx context.Context, request api.Request) ([]byte, error) {
	return nil, e.client.run(ctx, request, nil, e)
}

// Write writes the next bytes, and reads the end lines among them.
func (e *export) Write(piece []byte) (int, error) {
	count, err := e.target.Write(piece)
	for rest := piece; len(rest) > 0; {
		line, after, hasEnded := bytes.Cut(rest, []byte("\n"))
		rest = after
		e.take(line)
		if hasEnded {
			e.end()
		}
	}
	return count, err
}

func (e *export) take(part []byte) {
	if e.isOther || len(part) == 0 {
		return
	}
	e.isComplete = false
	e.line = append(e.line, part...)
	checked := min(len(e.line), len(endLine))
	e.isOther = !bytes.Equal(e.line[:checked], endLine[:checked]) || len(e.line) > maxEndLine
	if e.isOther {
		e.line = nil
	}
}

func (e *export) end() {
	var said struct {
		Records *int `json:"records"`
	}
	if !e.isOther && json.Unmarshal(e.line, &said) == nil && said.Records != nil {
		e.isComplete = true
		e.records += *said.Records
	}
	e.line, e.isOther = nil, false
}
