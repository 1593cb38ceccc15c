package postgres

import (
	"context"
	"fmt"
)

// Counters implements signup.AdminStore.
func (s *Signups) Counters(ctx context.Context, waitlistID string) (total, credited int64, err error) {
	st, err := scanState(s.pool.QueryRow(ctx, stateSQL, waitlistID))
	if err != nil {
		return 0, 0, fmt.Errorf("read counters: %w", err)
	}
	return st.total, st.credited, nil
}
