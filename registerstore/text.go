package registerstore

import (
	"encoding/json"
	"unicode/utf8"
)

// text is a string in JSON that is kept byte by byte: JSON's own strings would replace what is not
// UTF-8, and two names would become one.
type text string

// raw is how a text is written that is not UTF-8.
type raw struct {
	Bytes []byte `json:"bytes"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(raw{[]byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '{' {
		return json.Unmarshal(b, (*string)(t))
	}
	var r raw
	err := json.Unmarshal(b, &r)
	*t = text(r.Bytes)
	return err
}
