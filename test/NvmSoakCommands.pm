# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmSoakCommands - what a soak of nvm_cmdlog tables has besides: TPC-C by registered functions

=head1 SYNOPSIS

  $soak->{commands} = NvmSoakCommands->new($soak);
  $soak->{commands}->load;
  $soak->{commands}->draw_ddl;
  $soak->{commands}->rehearse;

=head1 DESCRIPTION

Callers (soak/commands.py) work on TPC-C's tables by the registered functions of
soak/commands.sql; others write the same tables by hand, and change them by DDL.  Each call's
transaction has a row that says what it was, by which the record of what was acknowledged is held
against the database, as everybody else's is.

DDL comes in rounds, as a rehearsal needs tables that have not changed since the checkpoint, and
calls are logged alone only without DDL.

=over

=item load

Tables, rows and functions, behind schema.sql.

=item draw_ddl

From now on clients may do DDL, or may not: one round of three may.

=item promote_at_work

Clients are at work: they rehearse, come to rest, and go on with functions whose calls are logged
alone.

=item promote

Clients are at rest, and nothing is prepared: functions that were rehearsed are promoted.

=item note_replay

Behind a start, when tables were looked at: counts the transactions that it has called again.

=item note_mode

Counts how the next crash finds the database.

=item rehearse

Clients are at work: no more DDL, a checkpoint, some calls, and a rehearsal, which must pass.

=item verify

What does not hold: the consistency conditions, calls that are there in part.  As problems.

=item counted

Text: what became of transactions with calls since the last start.

=back

=cut

package NvmSoakCommands;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Run ();
use Time::HiRes qw(time usleep);

my $here = dirname(abs_path(__FILE__)) . '/soak';

sub new
{
	my ($class, $soak) = @_;
	return bless { soak => $soak }, $class;
}

sub load
{
	my ($self) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'psql', '-X', '-q', '-d', $self->{soak}->node->connstr('postgres'), '-f', "$here/commands.sql" ],
		'<', '/dev/null', '>', \$out, '2>', \$err);
	die "load of commands.sql: $err" if $? != 0 || $err ne '';
	return;
}

sub draw_ddl
{
	my ($self) = @_;
	$self->{soak}->tell('ddl ' . ($self->{soak}->random(3) == 0 ? 'on' : 'off'));
	return;
}

sub rehearse
{
	my ($self) = @_;
	my $soak = $self->{soak};
	my $node = $soak->node;
	my $end = time() + 60;

	$soak->{what} = 'rehearsal';
	$soak->tell('ddl off');
	# one that is under way ends
	usleep(50_000)
	  while $node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'soak ddl%' AND state <> 'idle'}) > 0
	  && time() < $end;
	$node->safe_psql('postgres', 'SELECT nvm.checkpoint()');
	$soak->nap(2);
	my ($passed, $calls, $rows, $text) = split /\|/, $node->safe_psql('postgres',
		q{SELECT passed, calls, value_rows, concat_ws('; ', problem, detail, call, position) FROM nvm.rehearse(} . (1 + $soak->random(3)) . ')'), 4;
	$soak->count('rehearsals');
	$soak->count('calls rehearsed', $calls);
	$soak->count('rows rehearsed', $rows);
	$soak->problem("the rehearsal of $calls calls and $rows rows has found: $text") if $passed ne 't';
	return;
}

sub promote_at_work
{
	my ($self) = @_;
	my $soak = $self->{soak};

	$self->rehearse;
	$soak->{what} = 'promotion';
	$soak->tell($_) foreach qw(pause wait settle);
	$self->promote;
	$soak->tell('go');
	return;
}

sub promote
{
	my ($self) = @_;
	my $node = $self->{soak}->node;
	my @functions = split /\n/, $node->safe_psql('postgres',
		q{SELECT function FROM nvm.commands WHERE state IN ('shadow', 'changed') AND rehearsed IS NOT NULL AND function::text !~ '^soak_(?:pid|caught)'});

	foreach my $function (@functions)
	{
		my ($ret, $out, $err) = $node->psql('postgres', "SELECT nvm.promote_command('$function')");
		# what was rehearsed is what it was before a change
		$self->{soak}->problem("$function is not promoted: $err") if $ret != 0 && $err !~ /No rehearsal with calls of the function as it is now/;
		$self->{soak}->count('promotions') if $ret == 0;
	}
	$node->safe_psql('postgres', 'SELECT nvm.checkpoint()');
	return;
}

sub note_replay
{
	my ($self) = @_;
	my $soak = $self->{soak};
	my $starts = $soak->{counts}{restarts};

	return if $starts == ($self->{noted} // 0);
	$self->{noted} = $starts;
	foreach (split /\n/, $soak->node->safe_psql('postgres', 'SELECT state, transactions, r::text FROM nvm.replayed_databases r'))
	{
		my ($state, $transactions, $all) = split /\|/, $_, 3;
		$soak->problem("a replay is not done: $all") if $state ne 'done';
		$soak->count('starts that called again');
		$soak->count('called again', $transactions);
	}
	return;
}

sub note_mode
{
	my ($self) = @_;
	my $mode = $self->{soak}->ask('SELECT mode FROM nvm.command_modes WHERE database = current_database()') // 'not known';

	$self->{soak}{modes}{ $mode eq '' ? 'no' : $mode }++;
	return;
}

sub verify
{
	my ($self) = @_;
	return split /\n/, $self->{soak}->node->safe_psql('postgres', 'SELECT verify_calls()');
}

sub counted
{
	my ($self) = @_;
	return $self->{soak}->node->safe_psql('postgres',
		q{SELECT string_agg(format('%s %s/%s', split_part(function::text, '(', 1), replayable, by_values), ', ' ORDER BY function::text)
			|| (SELECT format('; mode %s, armed %s', mode, armed) FROM nvm.command_modes WHERE database = current_database())
		FROM nvm.commands WHERE calls > 0});
}

1;
