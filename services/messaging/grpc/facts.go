package grpc

import (
	"context"

	"waitlist.internal/libs/apierr"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/messaging/mails"
)

// Facts implements mails.Facts with calls to account and signup.
type Facts struct {
	Accounts accountv1.AccountServiceClient
	Signups  signupv1.SignupServiceClient
}

// Ask implements mails.Facts.
func (f Facts) Ask(ctx context.Context, r mails.Request) (mails.Request, error) {
	if r.WaitlistID != "" {
		return f.aboutSignup(ctx, r)
	}
	m, err := f.Accounts.GetAccountMail(ctx, &accountv1.GetAccountMailRequest{
		AccountId: r.AccountID, MemberEmail: r.Recipient, Mail: map[mails.Kind]accountv1.AccountMail{
			mails.AccountVerification: accountv1.AccountMail_ACCOUNT_MAIL_VERIFICATION,
			mails.PasswordReset:       accountv1.AccountMail_ACCOUNT_MAIL_PASSWORD_RESET,
			mails.PasswordChanged:     accountv1.AccountMail_ACCOUNT_MAIL_CREDENTIAL_CHANGED,
			mails.PasswordRecovered:   accountv1.AccountMail_ACCOUNT_MAIL_CREDENTIAL_CHANGED,
			mails.APIKeyChanged:       accountv1.AccountMail_ACCOUNT_MAIL_CREDENTIAL_CHANGED,
			mails.TeamInvite:          accountv1.AccountMail_ACCOUNT_MAIL_TEAM_INVITE,
			mails.TrialEnding:         accountv1.AccountMail_ACCOUNT_MAIL_TRIAL_ENDING,
		}[r.Kind],
	})
	if err != nil {
		return r, err
	}
	r.Recipient, r.Generation, r.OwnerEmail, r.Role = m.GetEmail(), m.GetGeneration(), m.GetOwnerEmail(), m.GetRole()
	if m.GetExpiresAt() != nil {
		r.ExpiresAt = m.GetExpiresAt().AsTime()
	}
	return r, nil
}

// aboutSignup asks signup about a verification or an offboarding mail.
func (f Facts) aboutSignup(ctx context.Context, r mails.Request) (mails.Request, error) {
	none := apierr.NotFoundf("Nothing asks for this mail.")
	in := &signupv1.GetMailingRequest{WaitlistId: r.WaitlistID, Number: r.Number}
	if r.Kind == mails.Offboarding {
		in.DepartedEmail = r.Recipient
	}
	m, err := f.Signups.GetMailing(ctx, in)
	if err != nil {
		return r, err
	}
	r.AccountID, r.WaitlistName, r.DefaultSender = m.GetOwnerId(), m.GetWaitlistName(), !m.GetPro()
	if r.Kind == mails.Offboarding {
		if !m.GetOffboarded() {
			return r, none
		}
		return r, nil
	}
	if !m.GetSignup().GetAwaitsVerification() {
		return r, none
	}
	r.Recipient = m.GetSignup().GetEmail()
	return r, nil
}
