package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v2"
)

// YAML returns the document for people, as patronictl shows it.
func (d Document) YAML() []byte {
	text, err := yaml.Marshal(map[string]any(d))
	if err != nil {
		panic(err) // it holds what JSON can
	}
	return text
}

// ParseYAML reads what a person has made of [Document.YAML]. An error is one line. As with Patroni
// it is YAML 1.1: on and yes are true.
func ParseYAML(text []byte) (Document, error) {
	v, err := ParseValue(text)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return Document{}, nil
	}
	d, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is no table: give lines of KEY: VALUE")
	}
	return d, nil
}

// ParseValue reads one value in YAML, such as 200, "4MB", true or null.
func ParseValue(text []byte) (any, error) {
	if len(text) > limit {
		return nil, fmt.Errorf("it is larger than %d bytes", limit)
	}
	var v, more any
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.SetStrict(true) // a key that is there twice is a mistake
	if err := d.Decode(&v); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	} else if err == nil && !errors.Is(d.Decode(&more), io.EOF) {
		return nil, errors.New("something stands behind it: give one value, a text in quotes as a whole")
	}
	v, err := plain(v)
	if err != nil || v == nil {
		return nil, err
	}
	whole, err := json.Marshal(map[string]any{"v": v})
	if err != nil {
		return nil, err
	}
	made, err := Parse(whole)
	return made["v"], err
}

// ParseParameter reads the value of a parameter of PostgreSQL. It is YAML where that is a number,
// true or false, null, or a text in quotes. Any other text is taken as it stands, with what YAML
// would drop or refuse: "$user", public; %m [%p] ; x #y.
func ParseParameter(text []byte) (any, error) {
	if len(text) > limit || !utf8.Valid(text) {
		return nil, errors.New("it is no text, or a very large one")
	}
	is := strings.TrimSpace(string(text))
	v, err := ParseValue(text)
	switch v.(type) {
	case bool, json.Number:
		return v, nil
	case string:
		if len(is) < 2 { // blanks that YAML does not take for such
			break
		}
		if first, last := is[0], is[len(is)-1]; first == last && (first == '"' || first == '\'') {
			return v, nil
		}
	case nil:
		if err == nil && (is == "~" || strings.EqualFold(is, "null")) {
			return nil, nil
		}
	}
	return string(text), nil
}

// plain makes what JSON knows of what YAML knows.
func plain(v any) (any, error) {
	switch v := v.(type) {
	case map[any]any:
		m := map[string]any{}
		for k, x := range v {
			switch k.(type) {
			case string, int, bool:
			default:
				return nil, fmt.Errorf("the key %v is no word", k)
			}
			var err error
			if m[fmt.Sprint(k)], err = plain(x); err != nil {
				return nil, err
			}
		}
		return m, nil
	case []any:
		for i := range v {
			var err error
			if v[i], err = plain(v[i]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// Difference returns what is in one document and not in the other, in lines that begin with "- "
// and "+ ", sorted by key.
func Difference(was, is Document) (lines []string) {
	before, after := map[string]string{}, map[string]string{}
	flatten("", was, before)
	flatten("", is, after)
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		old, had := before[key]
		now, has := after[key]
		if had && has && old == now {
			continue
		}
		if had {
			lines = append(lines, "- "+key+": "+old)
		}
		if has {
			lines = append(lines, "+ "+key+": "+now)
		}
	}
	return lines
}

func flatten(prefix string, in map[string]any, to map[string]string) {
	for key, v := range in {
		if below, ok := v.(map[string]any); ok && len(below) > 0 {
			flatten(prefix+key+".", below, to)
			continue
		}
		text, _ := json.Marshal(v)
		to[prefix+key] = string(text)
	}
}
