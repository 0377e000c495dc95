package sim
import ("testing";"os";"fmt")
func TestCtl(t *testing.T) {
	w := &World{}
	defer w.Close()
	for _, b := range []Broken{{}, {Unverified:true,NoMove:true},{NoMove:true}} {
		n := map[string]int{}
		var c Counts
		for s := uint64(1); s <= 5000; s++ {
			p := NewPlan(s, "etcd", Within); p.Broken = b
			r := w.Run(p, nil)
			c.StaleRevokes += r.Counts.StaleRevokes; c.Elections += r.Counts.Elections; c.Moves += r.Counts.Moves
			if r.Violation != nil { n[r.Violation.Rule]++; if n[r.Violation.Rule]==1 { fmt.Println("seed",s, r.Violation) } }
		}
		fmt.Printf("%+v: %v stale %d elections %d moves %d\n", b, n, c.StaleRevokes, c.Elections, c.Moves)
	}
	n := map[string]int{}
	for s := uint64(1); s <= 2000; s++ {
			p := NewPlan(s, "plain", Beyond)
			r := w.Run(p, nil)
			if r.Violation != nil { n[r.Violation.Rule]++; if n[r.Violation.Rule]==1 { fmt.Println("seed",s, r.Violation) } }
	}
	fmt.Println("beyond", n)
	_ = os.Stdout
}
