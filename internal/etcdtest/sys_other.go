//go:build !unix

package etcdtest

import "errors"

func lockFile(string) (func(), error) { return nil, errors.New("etcdtest: needs a Unix system") }
