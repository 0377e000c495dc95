// Package tomlfile reads a file of TOML so that each error can say where: as FILE:LINE.
package tomlfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/BurntSushi/toml"
)

// Read returns the text of a file of at most limit bytes. An error names the file.
func Read(path string, limit int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", err
	}
	if int64(len(text)) > limit {
		return "", fmt.Errorf("%s: it is larger than %d bytes", path, limit)
	}
	return string(text), nil
}

// File is a file that was parsed. Its values are decoded when they are asked for.
type File struct {
	path string
	md   toml.MetaData
}

// Table is the keys of a table and their values.
type Table map[string]Value

// Value is what a key is set to.
type Value struct {
	f *File
	p toml.Primitive
}

// Parse returns the table at the top of a text; path is what errors call it. An error is one line.
func Parse(path, text string) (*File, Table, error) {
	f := &File{path: path}
	var top map[string]toml.Primitive
	var err error
	if f.md, err = toml.Decode(text, &top); err != nil {
		return nil, nil, fmt.Errorf("%s: %s", f.where(err), reason(err))
	}
	return f, f.table(top), nil
}

// Keys returns all keys in the order of the file, each with those of the tables that it is in.
func (f *File) Keys() []toml.Key { return f.md.Keys() }

func (f *File) table(keys map[string]toml.Primitive) Table {
	t := Table{}
	for name, p := range keys {
		t[name] = Value{f, p}
	}
	return t
}

// Decode stores the value where to points. The error is one line, and does not say where. A map or
// a struct is for [Value.Table] to read: the parser takes anything for an empty one.
func (v Value) Decode(to any) error {
	if err := v.f.md.PrimitiveDecode(v.p, to); err != nil {
		return errors.New(reason(err))
	}
	return nil
}

// Table returns the keys of a value; false if it is no table.
func (v Value) Table() (Table, bool) {
	var keys map[string]toml.Primitive
	if !v.IsTable() || v.f.md.PrimitiveDecode(v.p, &keys) != nil {
		return nil, false
	}
	return v.f.table(keys), true
}

// IsTable says whether the value is a table.
func (v Value) IsTable() bool { return is[map[string]any](v) }

// IsList says whether the value is a list, though not one of tables.
func (v Value) IsList() bool { return is[[]any](v) }

func is[T any](v Value) bool {
	var x any
	if v.f.md.PrimitiveDecode(v.p, &x) != nil {
		return false
	}
	_, ok := x.(T)
	return ok
}

// nowhere is a value that cannot be decoded: the error says where it stands.
type nowhere struct{}

func (*nowhere) UnmarshalTOML(any) error { return errors.New("no value") }

// At returns where the key stands, as "file:line".
func (v Value) At() string { return v.f.where(v.f.md.PrimitiveDecode(v.p, &nowhere{})) }

func (f *File) where(err error) string {
	var pe toml.ParseError
	if errors.As(err, &pe) && pe.Position.Line > 0 {
		return fmt.Sprintf("%s:%d", f.path, pe.Position.Line)
	}
	return f.path
}

// reason is what the parser says without the place, in one line.
func reason(err error) string {
	text := strings.TrimPrefix(err.Error(), "toml: ")
	var pe toml.ParseError
	if errors.As(err, &pe) && pe.Message != "" {
		text = pe.Message
	}
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
