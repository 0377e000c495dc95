package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
)

const (
	maxBody  = 64 << 10 // a value of 4096 bytes may be escaped
	minRenew = 500      // ms
	maxMS    = 24 * 60 * 60 * 1000
)

// decode reads the body into v. It answers, and says no, where that is not JSON of this shape. No
// body is an empty object.
func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)) // within exchangeTime
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		tooLarge.Write(w, "the body is larger than %d bytes", maxBody)
		return false
	case err != nil:
		badJSON.Write(w, "the body did not arrive: %v", err)
		return false
	}
	given := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(given); (len(b) > 0 || given != "") &&
		(err != nil || media != "application/json") {
		badMedia.Write(w, "Content-Type is %q; send application/json (curl -H 'Content-Type: application/json' -d …)",
			given)
		return false
	}
	if len(b) == 0 {
		return true
	}
	if bad := notText(b); bad != "" {
		badJSON.Write(w, "%s", bad)
		return false
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err = d.Decode(v)
	if err == nil && b[bytes.IndexFunc(b, func(r rune) bool { return !strings.ContainsRune(" \t\r\n", r) })] != '{' {
		err = errors.New("it is not an object") // null would be taken
	}
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		badJSON.Write(w, "%s", unfit(err))
		return false
	}
	return true
}

// unfit says in words of JSON why a body could not be read: the decoder's own words name the types
// of this program.
func unfit(err error) string {
	var other *json.UnmarshalTypeError
	if !errors.As(err, &other) {
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	want := "an object"
	switch other.Type.Kind() {
	case reflect.Int, reflect.Int64:
		want = "a whole number"
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	}
	return fmt.Sprintf("%s must be %s, not: %s", cmp.Or(other.Field, "the body"), want, other.Value)
}

// notText says what is not Unicode in a body, "" if nothing is. The JSON decoder would put U+FFFD
// in its place, so that two names that differ became one.
func notText(b []byte) string {
	for at := 0; at < len(b); {
		r, n := utf8.DecodeRune(b[at:])
		switch {
		case r == utf8.RuneError && n == 1:
			return fmt.Sprintf("the body is not UTF-8: byte %#02x at offset %d; send UTF-8", b[at], at)
		case r == '\\':
			if n = escapeAt(b[at:]); n == 0 {
				return fmt.Sprintf("%s at offset %d is half of a surrogate pair; send both halves, or UTF-8",
					b[at:at+6], at)
			}
		}
		at += n
	}
	return ""
}

// escapeAt returns how long the escape is with which b begins: 0 for one that means no character.
func escapeAt(b []byte) int {
	first, ok := unit(b)
	if !ok {
		return min(2, len(b))
	}
	if !utf16.IsSurrogate(first) {
		return 6
	}
	if second, ok := unit(b[6:]); ok && utf16.DecodeRune(first, second) != utf8.RuneError {
		return 12
	}
	return 0
}

// unit returns the number in \uXXXX, if b begins with that.
func unit(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(n), err == nil
}

func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// checkMS says what is wrong with a time that was given; 0 is none.
func checkMS(what string, n, least int64) error {
	if n != 0 && (n < max(least, 1) || n > maxMS) {
		return fmt.Errorf("%s is %d: use %d to %d milliseconds", what, n, max(least, 1), int64(maxMS))
	}
	return nil
}

func checkWait(n *int64) error {
	if n != nil && (*n < 0 || *n > maxMS) {
		return fmt.Errorf("wait_ms is %d: use 0 to %d milliseconds", *n, int64(maxMS))
	}
	return nil
}

// tokenOf returns the token of the request's header. It answers where there is none.
func tokenOf(w http.ResponseWriter, r *http.Request) (primacy.Token, bool) {
	var t primacy.Token
	s := r.Header.Get("Primacy-Token")
	if err := t.UnmarshalText([]byte(s)); err != nil || t == 0 {
		health.Invalid.Write(w,
			"the header Primacy-Token is %q: give the token that was answered, a whole number above 0", s)
		return 0, false
	}
	return t, true
}

// maxLimit is how many records one answer has at most.
const maxLimit = 1000

// limitOf returns how many records are asked for. It answers where that cannot be.
func limitOf(w http.ResponseWriter, r *http.Request) (int, bool) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return 100, true
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		health.Invalid.Write(w, "limit=%q: use 1 to %d", text, maxLimit)
		return 0, false
	}
	return n, true
}
