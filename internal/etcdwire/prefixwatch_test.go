package etcdwire

import "testing"

// The prefix watch stands only after a few ticks with few watches, when those were requested one by
// one again. It must still be given up later: it hears of all that happens below the prefix.
func TestAPrefixWatchThatStandsLateIsGivenUp(t *testing.T) {
	t.Parallel()
	h := newHub(nil, "primacy/")
	h.Started, h.Above, h.Below = true, 1, 1
	stays := h.Watch(Span{Key: "primacy/a/1"}, func() {})
	h.Watch(Span{Key: "primacy/b/1"}, func() {}).Stop()
	other := h.Watch(Span{Key: "primacy/b/2"}, func() {})
	h.reset() // the stream is opened anew: only the prefix watch is requested
	h.Pending()
	late := h.PrefixWatch
	if late == nil || late.ID == 0 {
		t.Fatal("no prefix watch was requested")
	}
	other.Stop()
	for range 5 {
		h.Reap()
	}
	h.Pending()
	if stays.w.ID == 0 {
		t.Fatal("the watch that stays was not requested")
	}
	h.Lock()
	h.Stood(late, 100)
	h.Unlock()
	for range 10 {
		h.Reap()
		h.Pending()
		h.Lock()
		if stays.w.ID != 0 && stays.w.Since == 0 {
			h.Stood(stays.w, 200)
		}
		h.Unlock()
	}
	if h.PrefixWatch != nil || stays.w.Since == 0 {
		t.Errorf("the prefix watch goes on for one watch, which stands: %v", stays.w.Since != 0)
	}
}
