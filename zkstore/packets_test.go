package zkstore

import (
	"errors"
	"slices"
	"testing"
)

func TestAnswersAreReadOrRefused(t *testing.T) {
	b := appendText(appendText(appendInt(nil, 2), "one"), "two")
	var bytes []byte
	for i := range 68 {
		bytes = append(bytes, byte(i))
	}
	b = append(b, bytes...)
	want := stat{czxid: 0x01020304050607, mzxid: 0x08090a0b0c0d0e0f, version: 0x20212223, cversion: 0x24252627,
		ephemeralOwner: 0x2c2d2e2f30313233, children: 0x38393a3b, pzxid: 0x3c3d3e3f40414243}
	got, err := readLooked(opChildren, b)
	if err != nil || !slices.Equal(got.children, []string{"one", "two"}) || got.stat != want || !got.exists {
		t.Errorf("%+v, %v", got, err)
	}
	value := append(appendText(nil, "value"), bytes...)
	if got, err := readLooked(opGetData, value); err != nil || string(got.data) != "value" || got.stat != want {
		t.Errorf("%+v, %v", got, err)
	}
	none := append(appendInt(nil, -1), bytes...)
	if got, err := readLooked(opGetData, none); err != nil || len(got.data) != 0 || got.stat != want {
		t.Errorf("without a value: %+v, %v", got, err)
	}
	for code, whole := range map[opcode][]byte{opChildren: b, opGetData: value, opExists: bytes} {
		for n := range whole {
			if _, err := readLooked(code, whole[:n]); err == nil {
				t.Errorf("%d of %d bytes were taken for an answer", n, len(whole))
			}
		}
	}
}

func TestTheResultsOfAMultiAreReadOrRefused(t *testing.T) {
	head := func(b []byte, code opcode, done byte) []byte {
		return appendInt(append(appendInt(b, int32(code)), done), 0)
	}
	b := appendText(head(nil, opCreate, 0), "/path")
	b = head(b, opCheck, 0)
	b = append(head(b, opSetData, 0), make([]byte, 68)...)
	b = head(head(b, opDelete, 0), -1, 1)
	all, err := readResults(b)
	if err != nil || len(all) != 4 || all[0].path != "/path" || failed(all) != -1 {
		t.Errorf("%+v, %v", all, err)
	}
	for n := range b {
		if _, err := readResults(b[:n]); err == nil {
			t.Errorf("%d of %d bytes were taken for an answer", n, len(b))
		}
	}
	b = nil
	for _, code := range []int32{0, int32(errNoNode), -2} { // the second was the reason
		b = appendInt(head(b, -1, 0), code)
	}
	all, err = readResults(head(b, -1, 1))
	if !errors.Is(err, errNoNode) || len(all) != 3 || failed(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
