-- One login role for each service, waitlist_<schema>. It owns its own schema, in
-- which it migrates and works, and has no rights on another's, on public or on
-- the database. Run it once, by hand, in the suite's database, before the first
-- migration; again it changes nothing:
--
--   psql "$ADMIN_URL" -v ON_ERROR_STOP=1 -f roles.sql
--
-- as a superuser, or as the database's owner with CREATEROLE (Postgres 15 or
-- newer). The roles have no passwords and so cannot log in by one. Give each its
-- own; psql hashes it before it is sent:
--
--   psql "$ADMIN_URL" -c '\password waitlist_account'
--
-- POSTGRES_URL of account is then
--   postgres://waitlist_account:…@host:5432/waitlist?sslmode=verify-full&sslrootcert=…
--
-- The settings are those that libs/pg gives its sessions. A pooler of transactions keeps
-- none, so there the services need them here and refuse to work where they differ.
--
-- A connection limit keeps one service from taking all connections of the server.
-- Here it is that of ten replicas with the default POSTGRES_MAX_CONNS on four
-- processors, one more for each (the outbox), and some for a migration and for
-- operators: raise it with either. max_connections is the
-- server's own, and must hold for all of them.
BEGIN;

DO $roles$
DECLARE
    service  text;
    conns    int;
    member   text;
    setting  text;
    settings text[] := ARRAY[
        'statement_timeout TO ''4500ms''', 'lock_timeout TO ''4000ms''', 'idle_in_transaction_session_timeout TO ''30s''',
        'enable_seqscan TO off', 'jit TO off', 'timezone TO ''UTC'''];
    is_super bool := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    REVOKE ALL ON SCHEMA public FROM PUBLIC;
    FOR service, conns IN VALUES
        ('account', 60), ('signup', 230), ('admin_analytics', 60), ('billing', 160), ('messaging', 190), ('notifier', 60)
    LOOP
        member := 'waitlist_' || service;
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = member) THEN
            EXECUTE format('CREATE ROLE %I NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', member);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN CONNECTION LIMIT %s', member, conns);
        FOREACH setting IN ARRAY settings LOOP
            EXECUTE format('ALTER ROLE %I SET %s', member, setting);
        END LOOP;
        EXECUTE format('ALTER ROLE %I SET search_path TO %I', member, service);
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), member);
        IF NOT is_super THEN
            -- Who gives a schema to a role must be its member for that moment.
            EXECUTE format('GRANT %I TO CURRENT_USER', member);
        END IF;
        EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I AUTHORIZATION %I', service, member);
        IF NOT is_super THEN
            EXECUTE format('REVOKE %I FROM CURRENT_USER', member);
        END IF;
    END LOOP;
    -- The command that builds the sums again.
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO waitlist_admin_analytics', current_database());
END
$roles$;

COMMIT;
