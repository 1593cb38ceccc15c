package e2e

import (
	"fmt"
	"sort"
	"sync"
)

// Coverage counts the outcomes of each operation. It is safe for concurrent use.
type Coverage struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *Coverage) add(operation, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[operation+" "+outcome]++
}

// Missing lists the outcomes of implemented operations that have not occurred, except those that skip exempts.
func (c *Coverage) Missing(operations []Operation, skip func(operation, outcome string) bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, op := range operations {
		for _, outcome := range op.Outcomes {
			if !op.Planned && c.seen[op.ID+" "+outcome] == 0 && !skip(op.ID, outcome) {
				out = append(out, fmt.Sprintf("%s (%s %s): %s", op.ID, op.Method, op.Path, outcome))
			}
		}
	}
	sort.Strings(out)
	return out
}
