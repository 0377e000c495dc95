//go:build !unix

package durable

import (
	"errors"
	"io/fs"
	"os"
)

func flock(*os.File) (bool, error) {
	return false, errors.New("this operating system has no lock that ends with its process; fenced files need Linux or macOS")
}

func keepOwner(*os.File, fs.FileInfo) error { return nil }

func syncDir(*os.Root) error { return nil }
