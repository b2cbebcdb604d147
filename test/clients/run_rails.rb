# frozen_string_literal: true

# ActiveRecord's tests, with a line for compare.py of what became of each: its name, a tab,
# its outcome (record.py).
#
# usage: run_rails.rb FILE...	in the directory activerecord of the sources of Rails
#
# As in Rails' own "rake test:isolated", the schema is loaded once, and each file runs in a
# child of this process.  The seed of the order is fixed.

require "minitest"

module NvmClients
  SEED = "1"
  RESULTS = ENV.fetch("NVM_CLIENTS_RESULTS")

  class << self
    def add(name, outcome)
      stable = name.gsub(/0x\h{6,}/, "0x").gsub(/\s+/, " ").strip
      File.write(RESULTS, "#{stable}\t#{outcome}\n", mode: "a")
    end

    # In a child: one file
    def run(path, name)
      load path
    rescue Exception => error
      puts error.full_message(highlight: false)
      add("#{name}::", "error #{error.class}")
    else
      Minitest.reporter_of_file = Reporter.new(name)
      Minitest.run(["--no-plugins", "--seed", SEED])
    end
  end

  class Reporter < Minitest::AbstractReporter
    def initialize(file)
      super()
      @file = file
    end

    def record(result)
      outcomes = result.failures.map do |failure|
        case failure
        when Minitest::Skip then "skipped"
        when Minitest::UnexpectedError then "failed #{failure.error.class}"
        else "failed #{failure.class}"
        end
      end
      outcomes << "passed" if outcomes.empty?
      NvmClients.add("#{@file}::#{result.klass}##{result.name}", outcomes.uniq.join(" + "))
    end
  end
end

module Minitest
  class << self
    attr_accessor :reporter_of_file

    def plugin_nvm_init(_options)
      reporter << reporter_of_file
    end

    # Files ask for it, but this program runs them
    def autorun; end
  end
end
Minitest.extensions << "nvm"

File.write(NvmClients::RESULTS, "")
require "cases/helper"

ARGV.dup.each do |path|
  name = path.delete_prefix("test/")
  puts "--- #{name}"
  $stdout.flush
  pid = fork do
    ARGV.clear
    NvmClients.run(path, name)
    $stdout.flush
    exit! 0
  end
  Process.wait(pid)
  NvmClients.add("#{name}::", "error #{$?}".sub(/pid \d+ /, "")) unless $?.success?
end
