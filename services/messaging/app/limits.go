package app

import (
	"fmt"
	"time"

	"github.com/nyaruka/phonenumbers"

	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/messaging/grpc"
	"waitlist.internal/services/messaging/mails"
)

// limitProblems returns all problems of the settings that limit mails and text messages.
func (c Config) limitProblems() (all []error) {
	for _, limit := range []struct {
		variable string
		value    int64
	}{
		{"MAIL_DAILY_CAP", c.MailDailyCap},
		{"BLAST_DAILY_CAP_TRIAL", c.BlastDailyCapTrial},
		{"MAIL_DAILY_CAP_RECIPIENT", c.MailDailyCapRecipient},
		{"ASK_DAILY_CAP_RECIPIENT", c.AskDailyCapRecipient},
		{"SMS_DAILY_CAP", c.SMSDailyCap},
		{"SMS_DAILY_CAP_PREFIX", c.SMSDailyCapPrefix},
	} {
		if limit.value < 0 {
			all = append(all, fmt.Errorf("Set %s to 0 or more.", limit.variable)) //nolint:staticcheck // an instruction
		}
	}
	known := phonenumbers.GetSupportedRegions()
	for _, country := range c.SMSCountries {
		if !known[country] {
			//nolint:staticcheck // an instruction
			all = append(all, fmt.Errorf("Set SMS_COUNTRIES to country codes, such as DE,US. %q is not one.", country))
		}
	}
	return all
}

// limits returns what limits the mails and text messages of owners.
func (c Config) limits(accounts accountv1.AccountServiceClient) mails.Limits {
	l := mails.Limits{
		Accounts: grpc.NewAccounts(accounts, time.Now), EnforceVerification: c.EnforceEmailVerification,
		MailsPerOwner: c.MailDailyCap, MailsOnTrial: c.BlastDailyCapTrial, MailsPerRecipient: c.MailDailyCapRecipient,
		AsksPerRecipient: c.AskDailyCapRecipient,
	}
	if c.SMSProvider == "twilio" {
		l.Texts = &mails.TextLimits{
			Countries: c.SMSCountries, OnTrial: c.SMSTrials, PerOwner: c.SMSDailyCap, PerPrefix: c.SMSDailyCapPrefix,
		}
	}
	return l
}
