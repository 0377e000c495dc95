//go:build !linux

package doctor

import (
	"context"
	"errors"
)

// Run is for Linux only: elsewhere candidates could outlive the doctor.
func (o Torture) Run(context.Context) (*Verdict, error) {
	return nil, errors.New("--torture needs Linux")
}
