package http_test

import (
	"context"
	"testing"

	"github.com/alexedwards/argon2id"

	"waitlist.internal/services/account"
	"waitlist.internal/services/account/postgres"
)

// lateReset calls reset just before the first transaction.
type lateReset struct {
	*postgres.Store
	reset func()
}

func (s lateReset) InTx(ctx context.Context, fn func(account.Tx) error) error {
	s.reset()
	return s.Store.InTx(ctx, fn)
}

// cancelling cancels the request when the service reads the account.
type cancelling struct {
	*postgres.Store
	cancel func()
}

func (s cancelling) AccountByEmail(ctx context.Context, email string) (account.Account, error) {
	defer s.cancel()
	return s.Store.AccountByEmail(ctx, email)
}

func weakHash(t *testing.T, password string) string {
	t.Helper()
	h, err := argon2id.CreateHash(password, &argon2id.Params{Memory: 8192, Iterations: 1, Parallelism: 1, SaltLength: 16, KeyLength: 32})
	if err != nil {
		t.Fatal(err)
	}
	return h
}
