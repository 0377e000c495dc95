package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Document is a configuration as its users wrote it. Its numbers are [json.Number], so that they
// survive as they are.
type Document map[string]any

// limit bounds a document. etcd takes no more than 1.5 MiB.
const limit = 1 << 20

// Parse reads a document. An error is one line.
func Parse(text []byte) (Document, error) {
	if len(text) > limit {
		return nil, fmt.Errorf("it is larger than %d bytes", limit)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is no JSON: something stands behind the object")
	}
	doc, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is no JSON object")
	}
	return doc, nil
}

// JSON returns the document as Patroni writes it, in one line.
func (d Document) JSON() []byte {
	text, err := json.Marshal(map[string]any(d))
	if err != nil {
		panic(err) // it holds nothing that JSON cannot
	}
	return text
}

// Clone returns a copy that shares nothing with d.
func (d Document) Clone() Document { return cloned(map[string]any(d)).(map[string]any) }

func cloned(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[k] = cloned(x)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, x := range v {
			l[i] = cloned(x)
		}
		return l
	}
	return v
}

// Merge returns the document with a patch, as PATCH /config of Patroni does: an object is merged
// into the object of that name, null removes, anything else replaces. Values of the same text are
// the same. changed says whether anything did.
func (d Document) Merge(patch Document) (next Document, changed bool) {
	next = d.Clone()
	changed = merge(next, patch)
	return next, changed
}

func merge(into, patch map[string]any) (changed bool) {
	for name, value := range patch {
		old, there := into[name]
		table, isTable := value.(map[string]any)
		oldTable, wasTable := old.(map[string]any)
		switch {
		case value == nil:
			delete(into, name)
			changed = changed || old != nil
		case isTable && wasTable:
			changed = merge(oldTable, table) || changed
		case !there || !same(old, value):
			into[name] = cloned(value)
			changed = true
		}
	}
	return changed
}

// Equal says whether two documents have the same keys, and values of the same text.
func (d Document) Equal(e Document) bool { return same(map[string]any(d), map[string]any(e)) }

// same compares as Patroni does: 2 and "2" are the same value.
func same(a, b any) bool {
	x, tableX := a.(map[string]any)
	y, tableY := b.(map[string]any)
	if !tableX || !tableY {
		return tableX == tableY && scalar(a) == scalar(b)
	}
	if len(x) != len(y) {
		return false
	}
	for name, value := range x {
		other, ok := y[name]
		if !ok || !same(value, other) {
			return false
		}
	}
	return true
}

func scalar(v any) string {
	switch v := v.(type) {
	case []any:
		text, _ := json.Marshal(v)
		return string(text)
	case bool: // as Python writes it: true is not the text "true"
		return strings.ToUpper(fmt.Sprint(v))
	}
	return fmt.Sprint(v)
}

// With returns the document with one key set, or removed where the value is null. The path has dots
// between names, but behind postgresql.parameters all is one name: PostgreSQL's names have dots. A
// table that becomes empty is removed too.
func (d Document) With(path string, value any) (Document, error) {
	next := d.Clone()
	const parameters = "postgresql.parameters."
	var names []string
	if name, ok := strings.CutPrefix(path, parameters); ok {
		names = []string{"postgresql", "parameters", name}
	} else {
		names = strings.Split(path, ".")
	}
	for _, name := range names {
		if strings.TrimSpace(name) != name || name == "" {
			return nil, fmt.Errorf("%q is no key: give names with dots between them", path)
		}
	}
	set(next, names, value)
	return next, nil
}

func set(in map[string]any, names []string, value any) {
	name := names[0]
	if len(names) == 1 {
		if in[name] = value; value == nil {
			delete(in, name)
		}
		return
	}
	below, ok := in[name].(map[string]any)
	if !ok {
		below = map[string]any{}
	}
	set(below, names[1:], value)
	if in[name] = below; len(below) == 0 {
		delete(in, name)
	}
}
