// Package page looks at the page of `primacy serve --ui` and `primacy dashboard` as an operator
// does: in a real Chromium, on a real store.
//
//	PAGE_SHOTS=DIR go test -run TestEachView ./test/page      a picture of each view into DIR
//	PAGE_DOCS=1 go test -run TestTheDocsPictures ./test/page  those of docs/ anew
//	PAGE_MEASURE=1 go test -v -run 'TestTwo|TestALeader' ./test/page
//
// The last fails where the page is slower than is promised, and needs a quiet machine.
package page
