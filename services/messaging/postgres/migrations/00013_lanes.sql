-- +goose NO TRANSACTION
-- +goose Up

-- Mails and text messages have providers of their own, and are claimed apart: neither waits behind the other. The first
-- statements remove what an interrupted run left.
DROP INDEX CONCURRENTLY IF EXISTS sent_mail_due_mail;
DROP INDEX CONCURRENTLY IF EXISTS sent_mail_due_text;
CREATE INDEX CONCURRENTLY IF NOT EXISTS sent_mail_due_mail ON sent_mail (due_at) WHERE state = 'queued' AND kind <> 'sms';
CREATE INDEX CONCURRENTLY IF NOT EXISTS sent_mail_due_text ON sent_mail (due_at) WHERE state = 'queued' AND kind = 'sms';
DROP INDEX CONCURRENTLY IF EXISTS sent_mail_due;
