# pg_nvm: tables in a persistent-memory pool for PostgreSQL
#
# As with every extension built by PGXS:
#
#	make [PG_CONFIG=...]            build
#	make install | uninstall        into (from) the server PG_CONFIG names
#	make installcheck               regress, isolation and TAP tests of what is
#	                                installed, on temporary servers (not as root)
#
# Without a server to start from, on a bare machine too:
#
#	make check                      all tests, in a private copy of the server
#	make check T=LIST               only these TAP tests: topics (T=btree) or files
#	                                (T=btree/03_races); test/README.md has the index
#	make check-long                 the same with more crash images and longer runs,
#	                                check-core and check-soak
#	make check-core                 PostgreSQL's own suites on nvm, held against heap:
#	                                core's and some of contrib's
#	make check-soak                 an hour of everything on one cluster, with crashes
#	                                every few seconds (test/soak/run --help)
#	make check-fuzz                 pools that are damaged by chance, with knowledge of
#	                                their structures (test/fuzz/run --help)
#	make demo                       heap and nvm side by side, killed and restarted
#	make bench                      contrib_bench/run with its default workloads
#	make check-matrix [TIERS=...]   build, regress, isolation and TAP tests and check-core
#	                                on servers of 15, 17 and 18, built from Debian's sources
#	make check-sanitize             the tiers of the project's own tests on a server of 15
#	                                with AddressSanitizer and UndefinedBehaviorSanitizer;
#	                                hours
#	make check-valgrind             the regress tests on a server under memcheck; hours
#	make check-minor                a pool written under one minor version opens under
#	                                another
#	make check-headers              compile against the headers of 17 and 18
#	make lint                       layers, names of fences, layout of the media
#	make coverage                   which lines of src/ the tests reach, by gcov
#	make analyze                    gcc -fanalyzer, clang-tidy and cppcheck
#	make check-sqlsmith             ten minutes of random statements, with assertions
#	make check-clients              suites of SQLAlchemy, Django and others, on heap and nvm

DRIVER_GOALS = check check-long check-core check-soak check-fuzz check-matrix check-sanitize check-valgrind \
	check-minor check-sqlsmith check-clients demo bench check-headers lint coverage analyze
PG_CONFIG ?= pg_config

ifneq (,$(filter $(DRIVER_GOALS),$(MAKECMDGOALS)))

# These install what is missing themselves, so pg_config need not exist yet.
OTHER_GOALS := $(filter-out $(DRIVER_GOALS),$(MAKECMDGOALS))
.PHONY: $(DRIVER_GOALS) $(OTHER_GOALS)
.NOTPARALLEL:
ifneq (,$(filter command% environment%,$(origin PG_CONFIG)))
export PG_CONFIG
endif

check:
	scripts/check.sh $(if $(filter command%,$(origin T)),--tests='$(T)')

check-long:
	scripts/check.sh --long

check-core:
	scripts/core_suites.sh

check-soak:
	test/soak/run

check-fuzz:
	test/fuzz/run

check-matrix:
	scripts/check_matrix.sh $(TIERS)

check-sanitize:
	scripts/check_sanitize.sh

check-valgrind:
	scripts/check_valgrind.sh

demo:
	demo/run

bench:
	contrib_bench/run

check-minor:
	scripts/check_minor.sh

check-headers:
	scripts/check_headers.sh

coverage:
	scripts/coverage.sh

analyze:
	scripts/analyze.sh

check-sqlsmith:
	scripts/check_sqlsmith.sh

check-clients:
	scripts/check_clients.sh

lint:
	scripts/check_layers.py
	scripts/check_drain_names.py
	scripts/check_tests.py
	test/core/compare_test.py
	test/clients/compare_test.py
	scripts/indent.py --check || [ $$? = 77 ]
	$(MAKE) -C test/media check

ifneq (,$(OTHER_GOALS))
$(OTHER_GOALS):
	+$(MAKE) $@
endif

else

EXTENSION = pg_nvm
MODULE_big = pg_nvm
PGFILEDESC = "pg_nvm - tables in a persistent-memory pool"
DATA = pg_nvm--0.1.sql
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))

PG_CPPFLAGS = -Isrc -DNVM_VERSION='"$(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" pg_nvm.control)"'
PG_CFLAGS = -Wall -Wextra -Werror -Wno-unused-parameter
SHLIB_LINK = -lpmem

# Programs, with the checks of src/verify once more: the offline checker, and what prints the log
VERIFY_FE_OBJS = $(patsubst %.c,%_fe.o,$(sort $(wildcard src/verify/*.c)))
POOLCHECK = bin/nvm_poolcheck/nvm_poolcheck
POOLCHECK_OBJS = $(patsubst %.c,%.o,$(sort $(wildcard bin/nvm_poolcheck/*.c))) $(VERIFY_FE_OBJS)
LOGDUMP = bin/nvm_logdump/nvm_logdump
LOGDUMP_OBJS = $(patsubst %.c,%.o,$(sort $(wildcard bin/nvm_logdump/*.c))) $(VERIFY_FE_OBJS)
PROGRAMS = $(POOLCHECK) $(LOGDUMP)
PROGRAM_OBJS = $(sort $(POOLCHECK_OBJS) $(LOGDUMP_OBJS))

# Each suite has its own temporary server, because the library must be
# preloaded.  These options come after those of PGXS and override them.
# Those named vNN_... need PostgreSQL NN or later.
TOO_NEW = $(if $(filter 15 16,$(MAJORVERSION)),v17% v18%,$(if $(filter 17,$(MAJORVERSION)),v18%))
REGRESS = $(filter-out $(TOO_NEW),$(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql))))
REGRESS_OPTS = --temp-instance=tmp_check --temp-config=test/regress/nvm.conf
ISOLATION = $(filter-out $(TOO_NEW),$(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec))))
ISOLATION_OPTS = --inputdir=test --temp-instance=tmp_check_iso \
	--temp-config=test/regress/nvm.conf
TAP_TESTS = 1
PROVE_TESTS ?= test/t/*/*.pl

EXTRA_CLEAN = results regression.diffs regression.out output_iso tmp_check_iso \
	$(PROGRAMS) $(PROGRAM_OBJS)

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

PG_PROVE_FLAGS += -I $(srcdir)/test

# PGXS of a packaged server tracks no headers
$(OBJS) $(OBJS:.o=.bc) $(PROGRAM_OBJS): $(wildcard src/*.h src/*/*.h bin/*/*.h) Makefile

# PGXS has no PROGRAM beside a MODULE_big
all: $(PROGRAMS)
$(POOLCHECK): $(POOLCHECK_OBJS)
$(LOGDUMP): $(LOGDUMP_OBJS)
$(PROGRAMS):
	$(CC) $(CFLAGS) $^ $(LDFLAGS) $(LDFLAGS_EX) -L'$(pkglibdir)' -L'$(libdir)' \
		-lpgcommon -lpgport -lm -o $@
$(PROGRAM_OBJS): override CPPFLAGS += -DFRONTEND
%_fe.o: %.c
	$(CC) $(CFLAGS) $(CPPFLAGS) -c -o $@ $<

install: install-programs
install-programs: $(PROGRAMS)
	$(MKDIR_P) '$(DESTDIR)$(bindir)'
	$(INSTALL_PROGRAM) $(PROGRAMS) '$(DESTDIR)$(bindir)/'
uninstall: uninstall-programs
uninstall-programs:
	rm -f $(patsubst %,'$(DESTDIR)$(bindir)/%',$(notdir $(PROGRAMS)))
.PHONY: install-programs uninstall-programs

# a fence without a name of its own fails the build: no test would find it
all: fence-names
fence-names:
	@if command -v python3 >/dev/null; then scripts/check_drain_names.py; fi
.PHONY: fence-names

# which files of regress there are for this server
print-regress:
	@echo $(REGRESS)
.PHONY: print-regress

# what the TAP tests call besides the server
installcheck: test-tools
test-tools:
	$(MAKE) -C test/crashimage
	$(MAKE) -C test/tools
	$(MAKE) -C test/powerfail

clean: clean-tools
clean-tools:
	$(MAKE) -C test/media clean
	if test -f test/crashimage/Makefile; then $(MAKE) -C test/crashimage clean; fi
	if test -f test/tools/Makefile; then $(MAKE) -C test/tools clean; fi
	if test -f test/powerfail/Makefile; then $(MAKE) -C test/powerfail clean; fi
.PHONY: test-tools clean-tools

endif
