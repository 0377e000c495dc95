package core

import (
	"fmt"
	"testing"
)

func TestPressAsksWhoStoodUnbroken(t *testing.T) {
	type look struct {
		at           float64
		mine, leader uint64
		ask          bool
	}
	for _, tc := range []struct {
		name  string
		looks []look
	}{
		{"asks once it has stood for so long, and again", []look{{0, 5, 3, false}, {9.9, 5, 3, false}, {10, 5, 3, true}, {19.9, 5, 3, false}, {20, 5, 3, true}}},
		{"a lost place begins again", []look{{0, 5, 3, false}, {9, 6, 3, false}, {18.9, 6, 3, false}, {19, 6, 3, true}}},
		{"a new leader has its time too", []look{{0, 5, 3, false}, {9, 5, 4, false}, {18.9, 5, 4, false}, {19, 5, 4, true}}},
		{"out of the line", []look{{0, 5, 3, false}, {9, 0, 3, false}, {30, 0, 3, false}, {31, 5, 3, false}, {40.9, 5, 3, false}, {41, 5, 3, true}}},
		{"nobody to ask", []look{{0, 5, 0, false}, {20, 5, 0, false}, {30, 5, 3, false}, {40, 5, 3, true}}},
		{"one that flaps never asks", []look{{0, 5, 3, false}, {9, 6, 3, false}, {18, 7, 3, false}, {27, 8, 3, false}, {36, 9, 3, false}}},
	} {
		p := Press{Steady: at(10)}
		for _, l := range tc.looks {
			ask, wake := p.Step(at(l.at), l.mine, l.leader)
			if ask != l.ask {
				t.Errorf("%s: at %v s: asks %v, want %v", tc.name, l.at, ask, l.ask)
			}
			if in := wake - at(l.at); in < lookFloor || in > at(2.5) {
				t.Errorf("%s: at %v s: looks again in %v", tc.name, l.at, in)
			}
		}
	}
}

// However short the time to stand is, the store is not hammered.
func TestPressIsPolite(t *testing.T) {
	p := Press{Steady: 1}
	if _, wake := p.Step(0, 5, 3); wake < lookFloor {
		t.Errorf("looks again after %v", wake)
	}
}

func TestYields(t *testing.T) {
	got := ""
	for own := range 3 {
		for asking := range 3 {
			got += fmt.Sprintf("%d<%d:%v ", own, asking, GivesWay(own, asking))
		}
	}
	if want := "0<0:false 0<1:true 0<2:true 1<0:false 1<1:false 1<2:true 2<0:false 2<1:false 2<2:false "; got != want {
		t.Errorf("got %s", got)
	}
}
