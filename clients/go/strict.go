package pqkeep

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxDepth = 100

var errNotJSON = errors.New("not strict JSON")

// strictJSON returns an error unless the text is one JSON value, in UTF-8, without a name twice.
func strictJSON(text []byte) error {
	if !utf8.Valid(text) || !json.Valid(text) {
		return errNotJSON
	}
	type level struct {
		names    map[string]bool
		isObject bool
		isName   bool
	}
	levels := []*level{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return errNotJSON
		}
		var inner *level
		if len(levels) > 0 {
			inner = levels[len(levels)-1]
		}
		if delimiter, isDelimiter := token.(json.Delim); isDelimiter && (delimiter == '}' || delimiter == ']') {
			levels = levels[:len(levels)-1]
			continue
		} else if inner != nil && inner.isObject {
			if inner.isName {
				name := token.(string)
				if inner.names[name] {
					return errNotJSON
				}
				inner.names[name] = true
			}
			inner.isName = !inner.isName
		}
		if delimiter, isDelimiter := token.(json.Delim); isDelimiter {
			if len(levels) == maxDepth {
				return errNotJSON
			}
			isObject := delimiter == '{'
			levels = append(levels, &level{names: map[string]bool{}, isObject: isObject, isName: isObject})
		}
	}
}

func isObject(data json.RawMessage) bool { return len(data) > 0 && data[0] == '{' }

// differs returns the first field of a request that names a key and that the response has with
// another value, or an empty text.
func differs(body []byte, query url.Values, data json.RawMessage) string {
	var asked, said map[string]any
	if json.Unmarshal(data, &said) != nil {
		return ""
	}
	if body != nil && json.Unmarshal(body, &asked) != nil {
		return ""
	}
	if to, isObject := asked["to"].(map[string]any); isObject { // re-encryption
		delete(asked, "key_version")
		for name, value := range to {
			asked[name] = value
		}
	}
	for _, name := range []string{"algorithm", "key_version", "keyring"} {
		wanted := asked[name]
		if body == nil && query.Get(name) != "" {
			wanted = query.Get(name)
			if number, isNumber := said[name].(float64); isNumber {
				said[name] = strconv.FormatFloat(number, 'f', -1, 64)
			}
		}
		if wanted != nil && said[name] != nil && !isSame(wanted, said[name]) {
			return name
		}
	}
	return ""
}

func isSame(wanted, said any) bool {
	switch said.(type) {
	case string, float64, bool:
	default:
		return false
	}
	return wanted == said || canonical(wanted) == canonical(said)
}

// canonical returns the API's name of an algorithm with two names.
func canonical(value any) any {
	switch value {
	case "ML-KEM-768":
		return "Kyber768"
	case "ML-DSA-65":
		return "Dilithium3"
	}
	return value
}

// fill decodes data, and returns the first field that is missing or malformed, or an empty text.
func fill(data json.RawMessage, result any) string {
	if field := missing(data, reflect.TypeOf(result)); field != "" {
		return field
	}
	err := json.Unmarshal(data, result)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return wrong.Field
	}
	if err != nil {
		return "data"
	}
	return ""
}

// missing returns the first field of a type that data lacks, or an empty text. encoding/json would
// leave it at its zero value.
func missing(data json.RawMessage, kind reflect.Type) string {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch {
	case kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.Struct:
		var members []json.RawMessage
		if json.Unmarshal(data, &members) != nil {
			return "data"
		}
		for _, member := range members {
			if field := missing(member, kind.Elem()); field != "" {
				return field
			}
		}
	case kind.Kind() == reflect.Struct && kind.Name() != "Time":
		var members map[string]json.RawMessage
		if json.Unmarshal(data, &members) != nil {
			return "data"
		}
		for place := range kind.NumField() {
			field := kind.Field(place)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			value, isThere := members[name]
			if name == "" || name == "-" {
				continue
			}
			if !isThere || string(value) == "null" {
				if options == "" && field.Type.Kind() != reflect.Pointer && field.Type.Kind() != reflect.Interface {
					return name
				}
				continue
			}
			if wrong := missing(value, field.Type); wrong != "" {
				return name
			}
		}
	}
	return ""
}
