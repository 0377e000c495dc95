//go:build !linux

package filereg

import "errors"

type ears struct{}

func newEars() (*ears, error) { return nil, errors.ErrUnsupported }

func (*ears) listen(string, string) (<-chan struct{}, func(), error) {
	return nil, nil, errors.ErrUnsupported
}

func (*ears) close() {}
