package pqkeep

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
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

var (
	binaryType = reflect.TypeFor[[]byte]()
	rawType    = reflect.TypeFor[json.RawMessage]()
	timeType   = reflect.TypeFor[time.Time]()
)

// fill decodes JSON into what a pointer points to. It returns the first field that is missing or
// malformed, "data" for the whole, or an empty text. encoding/json would match names without regard to
// case, leave missing fields zero, and accept base64 with line breaks.
func fill(data json.RawMessage, result any) string {
	field, isRead := decode(data, reflect.ValueOf(result).Elem())
	if !isRead && field == "" {
		return "data"
	}
	return field
}

// decode returns the field of an object that is malformed, or an empty text if the value is no object.
func decode(data json.RawMessage, target reflect.Value) (field string, isRead bool) {
	kind := target.Type()
	isNull := string(data) == "null"
	switch {
	case kind == rawType:
		target.SetBytes(data)
		return "", true
	case kind == binaryType:
		var text string
		if isNull || json.Unmarshal(data, &text) != nil || strings.ContainsAny(text, "\r\n") {
			return "", false
		}
		decoded, err := base64.StdEncoding.Strict().DecodeString(text)
		target.SetBytes(decoded)
		return "", err == nil
	case kind.Kind() == reflect.Interface:
		return "", json.Unmarshal(data, target.Addr().Interface()) == nil
	case isNull:
		return "", kind.Kind() == reflect.Pointer
	case kind.Kind() == reflect.Pointer:
		target.Set(reflect.New(kind.Elem()))
		return decode(data, target.Elem())
	case kind.Kind() == reflect.Slice:
		var members []json.RawMessage
		if json.Unmarshal(data, &members) != nil {
			return "", false
		}
		target.Set(reflect.MakeSlice(kind, len(members), len(members)))
		for place, member := range members {
			if field, isRead := decode(member, target.Index(place)); !isRead {
				return field, false
			}
		}
		return "", true
	case kind.Kind() == reflect.Map:
		var members map[string]json.RawMessage
		if json.Unmarshal(data, &members) != nil {
			return "", false
		}
		target.Set(reflect.MakeMapWithSize(kind, len(members)))
		for name, member := range members {
			value := reflect.New(kind.Elem()).Elem()
			if _, isRead := decode(member, value); !isRead {
				return name, false
			}
			target.SetMapIndex(reflect.ValueOf(name).Convert(kind.Key()), value)
		}
		return "", true
	case kind.Kind() == reflect.Struct && kind != timeType:
		return decodeFields(data, target)
	}
	return "", json.Unmarshal(data, target.Addr().Interface()) == nil
}

func decodeFields(data json.RawMessage, target reflect.Value) (field string, isRead bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil {
		return "", false
	}
	for place := range target.NumField() {
		described := target.Type().Field(place)
		name, options, _ := strings.Cut(described.Tag.Get("json"), ",")
		value, isThere := members[name]
		if name == "" || name == "-" {
			continue
		}
		if !isThere || string(value) == "null" {
			kind := described.Type.Kind()
			if options == "" && kind != reflect.Pointer && kind != reflect.Interface {
				return name, false
			}
			continue
		}
		if _, isRead := decode(value, target.Field(place)); !isRead {
			return name, false
		}
	}
	return "", true
}
