//go:build !unix

package k8stest

import "errors"

func lockFile(string) (func(), error) { return nil, errors.New("k8stest: needs a Unix system") }
